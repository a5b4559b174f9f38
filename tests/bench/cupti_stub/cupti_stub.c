/* A libcupti whose driver does what a test tells it to: faults and moves are records that
 * stub_emit writes, and the stub_* settings say how they reach the meter, or how they do not.
 *
 * Only what is configured and enabled is recorded, after the calls that NVIDIA's sample makes and in
 * their order: who asks for dropped records first is told of none. Prototypes and structures are those of NVIDIA's
 * cupti_activity.h; test_cupti_for_real.py holds the meter's against the header itself.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KIND 25
#define FOREIGN_KIND 10
#define FOREIGN_BYTES 48
enum { SUCCESS = 0, INVALID_OPERATION = 7, MAX_LIMIT_REACHED = 12, INVALID_KIND = 21 };
enum { VERSION, CONFIGURE, ENABLE, FLUSH, DISABLE, CALLS };
enum { INLINE, ON_A_THREAD, LATE, NEVER };

typedef struct { uint32_t scope, kind, device, enable; } Config;
typedef void (*Request)(uint8_t **, size_t *, size_t *);
typedef void (*Complete)(void *, uint32_t, uint8_t *, size_t, size_t);
typedef struct { uint8_t *start; size_t size, used; } Buffer;

static uint32_t version = 130001;
static size_t stride = 104, records_a_buffer = 1000, dropped;
static uint64_t address = 4096;
static int answers[CALLS], delivery, configured, enabled, ever_enabled, blind, beside_runs;
static Request request;
static Complete complete;
static Buffer current;
static pthread_t beside_thread;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void stub_version(uint32_t value, size_t record_bytes) { version = value; stride = record_bytes; }
void stub_answer(int call, int code) { answers[call] = code; }
void stub_records_a_buffer(size_t count) { records_a_buffer = count; }
void stub_address(uint64_t value) { address = value; } /* of what is emitted from now on */
void stub_delivery(int how) { delivery = how; }
void stub_drop(size_t count) { dropped += count; }
int stub_enabled(void) { return enabled; }

static void *hand_over(void *argument) {
    Buffer *full = argument;
    complete(NULL, 0, full->start, full->size, full->used);
    free(full);
    return NULL;
}

static void *hand_over_late(void *argument) {
    struct timespec until_flush_has_returned = {0, 100 * 1000 * 1000};
    nanosleep(&until_flush_has_returned, NULL);
    return hand_over(argument);
}

static void return_current(void) {
    if (current.start == NULL || delivery == NEVER) return;
    Buffer *full = malloc(sizeof *full);
    *full = current;
    memset(&current, 0, sizeof current);
    pthread_t thread;
    if (delivery == INLINE) {
        hand_over(full);
    } else {
        pthread_create(&thread, NULL, delivery == LATE ? hand_over_late : hand_over, full);
        if (delivery == LATE) pthread_detach(thread); else pthread_join(thread, NULL);
    }
}

/* The driver records something of this kind. */
void stub_emit(uint32_t kind, uint32_t counter, uint64_t value) {
    size_t bytes = kind == KIND ? stride : FOREIGN_BYTES;
    if (!enabled || blind || (kind == KIND && !(configured >> counter & 1))) return;
    pthread_mutex_lock(&lock);
    if (current.start != NULL &&
        (current.used + bytes > current.size || current.used >= records_a_buffer * stride))
        return_current();
    if (current.start == NULL) {
        size_t most = 0;
        request(&current.start, &current.size, &most);
    }
    if (current.start == NULL || current.used + bytes > current.size) {
        dropped++;
    } else {
        uint8_t *record = current.start + current.used;
        memset(record, 0xEE, bytes); /* what the meter does not read is noise */
        memcpy(record, &kind, 4);
        memcpy(record + 4, &counter, 4);
        memcpy(record + 8, &value, 8);
        if (kind == KIND) memcpy(record + 32, &address, 8);
        current.used += bytes;
    }
    pthread_mutex_unlock(&lock);
}

/* CUPTI asks for a buffer before it has anything to write. */
void stub_ask(void) {
    size_t most = 0;
    if (current.start == NULL) request(&current.start, &current.size, &most);
}

static void *emit_all(void *count) {
    for (uintptr_t i = 0; i < (uintptr_t)count; i++) stub_emit(KIND, 1, 4096);
    return NULL;
}

/* Moves of 4096 bytes each to the GPU, recorded by a thread of the driver; a flush waits for it. */
void stub_emit_beside(uintptr_t count) {
    beside_runs = 1;
    pthread_create(&beside_thread, NULL, emit_all, (void *)count);
}

int cuptiGetVersion(uint32_t *value) { *value = version; return answers[VERSION]; }

int cuptiGetResultString(int code, const char **text) {
    *text = code == 999 ? NULL : "CUPTI_ERROR_STUB"; /* 13.5 knows no word where there is no driver */
    return SUCCESS;
}

int cuptiActivityRegisterCallbacks(Request asked, Complete done) {
    request = asked;
    complete = done;
    return SUCCESS;
}

int cuptiActivityConfigureUnifiedMemoryCounter(Config *configs, uint32_t count) {
    if (answers[CONFIGURE]) return answers[CONFIGURE];
    for (uint32_t i = 0; i < count; i++)
        if (configs[i].scope == 2 && configs[i].enable) configured |= 1 << configs[i].kind;
    return SUCCESS;
}

int cuptiActivityEnable(int kind) {
    if (answers[ENABLE]) return answers[ENABLE];
    if (!configured || request == NULL) return INVALID_OPERATION;
    if (kind == KIND) enabled = ever_enabled = 1;
    return SUCCESS;
}

int cuptiActivityDisable(int kind) {
    if (kind == KIND) enabled = 0;
    return answers[DISABLE];
}

int cuptiActivityFlushAll(uint32_t flag) {
    (void)flag;
    if (beside_runs) pthread_join(beside_thread, NULL);
    beside_runs = 0;
    if (answers[FLUSH]) return answers[FLUSH];
    return_current();
    return SUCCESS;
}

int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, uint8_t **record) {
    uint32_t kind;
    uint8_t *next = buffer;
    if (*record != NULL) {
        memcpy(&kind, *record, 4);
        next = *record + (kind == KIND ? stride : FOREIGN_BYTES);
    }
    if (next + 4 > buffer + valid) return MAX_LIMIT_REACHED;
    memcpy(&kind, next, 4);
    if (kind != KIND && kind != FOREIGN_KIND) return INVALID_KIND;
    *record = next;
    return SUCCESS;
}

int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count) {
    (void)context, (void)stream;
    blind |= !ever_enabled; /* NVIDIA's sample asks once it counts: before that, be strict */
    *count = dropped;
    dropped = 0;
    return SUCCESS;
}
