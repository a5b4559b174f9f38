/* A libnvidia-ml.so.1 that says what a script tells it to say, traps and all.
 *
 * NVML_STUB_SCRIPT names a text file of `key value` lines. It is read again at every call, so a test
 * changes what the "driver" says by replacing the file. `gpuN.key` belongs to one GPU. Numbers not
 * given are 0. A `*_return` key makes that call (or field) fail with this NVML error code.
 *
 *   init_return, devices, driver
 *   gpuN.uuid, gpuN.name, gpuN.mig (1: MIG mode is on), gpuN.lost (1), gpuN.lost_after (calls)
 *   gpuN.rx, gpuN.tx              bytes so far; and gpuN.rx_rate, gpuN.tx_rate more a second since
 *   gpuN.from                     this time (s, CLOCK_MONOTONIC)
 *   gpuN.fields_return, gpuN.field_return, gpuN.rx_return, gpuN.power_return
 *   gpuN.counter_factor           what the byte counters are multiplied by (default 1)
 *   gpuN.timestamp                of the fields, us (default: now); -1: the driver leaves it 0
 *   gpuN.energy_mj, gpuN.power_mw (its energy grows at this power), gpuN.energy_return
 *   gpuN.temperature, gpuN.clock_mhz, gpuN.reasons, gpuN.gen, gpuN.gen_max, gpuN.width, gpuN.width_max
 *
 * A test copies bytes with stub_copy_begin and stub_copy_end (of GPU 0).
 *
 * The structures are those of NVIDIA's nvml.h as the nvidia-ml-py package mirrors them.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define GPU_IS_LOST 15

typedef struct { uint32_t field, scope; int64_t timestamp, latency; int32_t type, ret;
                 union { double d; int32_t si; uint32_t ui; uint64_t ull; } value; } FieldValue;
typedef struct { unsigned version; unsigned sensor; int temperature; } Temperature;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char name[32]; } Pci;

static long calls[16];

/* A test's own time, of all clocks; 0: the machine's. */
double stub_now_s;

static double clock_s(clockid_t which) {
    struct timespec t;
    if (stub_now_s != 0) return stub_now_s;
    clock_gettime(which, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now_s(void) { return clock_s(CLOCK_MONOTONIC); }

/* Bytes copied so far, and the copy under way: in which direction (0: to the host, as NVML counts;
 * -1: none), at what rate, since when. */
static pthread_mutex_t copying = PTHREAD_MUTEX_INITIALIZER;
static double copied[2], copy_rate, copy_since;
static int copy_of = -1;

static double copied_until(int which, double now) {
    pthread_mutex_lock(&copying);
    double sum = copied[which];
    if (copy_of == which && now > copy_since) sum += copy_rate * (now - copy_since);
    pthread_mutex_unlock(&copying);
    return sum;
}

void stub_copy_begin(int which, double rate) {
    pthread_mutex_lock(&copying);
    copy_of = which, copy_rate = rate, copy_since = now_s();
    pthread_mutex_unlock(&copying);
}

double stub_copy_end(void) {
    pthread_mutex_lock(&copying);
    double moved = copy_rate * (now_s() - copy_since);
    copied[copy_of] += moved;
    copy_of = -1;
    pthread_mutex_unlock(&copying);
    return moved;
}

/* One reading of the script answers a whole call: a test may replace the file at any time. */
static _Thread_local char script[8192];

static void read_script(void) {
    const char *path = getenv("NVML_STUB_SCRIPT");
    FILE *file = path ? fopen(path, "r") : NULL;
    script[file ? fread(script, 1, sizeof script - 1, file) : 0] = 0;
    if (file) fclose(file);
}

static int look_up(const char *key, char *value, size_t room) {
    size_t length = strlen(key);
    for (const char *line = script; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, key, length) && line[length] == ' ') {
            snprintf(value, room, "%.*s", (int)strcspn(line + length + 1, "\n"), line + length + 1);
            return 1;
        }
    }
    return 0;
}

static double number(const char *key, double otherwise) {
    char text[128];
    return look_up(key, text, sizeof text) ? strtod(text, NULL) : otherwise;
}

/* Handles are small integers, one more than the GPU's index. */
static long index_of(void *gpu) { return (long)(intptr_t)gpu - 1; }

static double of(void *gpu, const char *key, double otherwise) {
    char name[128];
    snprintf(name, sizeof name, "gpu%ld.%s", index_of(gpu), key);
    return number(name, otherwise);
}

static int refusal(void *gpu, const char *key) {
    long index = index_of(gpu);
    double after = of(gpu, "lost_after", -1);
    if (index < 0 || index >= 16) return INVALID_ARGUMENT;
    if (of(gpu, "lost", 0) || (after >= 0 && calls[index]++ >= after)) return GPU_IS_LOST;
    return (int)of(gpu, key, SUCCESS);
}

/* Of the stand-in for CUDA (tests/gpu/standin), where a process is under it as well: what its copies
 * have carried. */
double standin_link_bytes(int to_device) __attribute__((weak));

static double moved(void *gpu, const char *direction, double now) {
    char rate[16];
    snprintf(rate, sizeof rate, "%s_rate", direction);
    double sum = of(gpu, direction, 0) + of(gpu, rate, 0) * (now - of(gpu, "from", 0));
    if (index_of(gpu) != 0) return sum;
    if (standin_link_bytes) sum += standin_link_bytes(*direction == 'r');
    return sum + copied_until(*direction == 'r', now);
}

static int text_of(void *gpu, const char *key, char *out, unsigned room) {
    char name[128];
    snprintf(name, sizeof name, "gpu%ld.%s", index_of(gpu), key);
    return look_up(name, out, room) ? SUCCESS : NOT_SUPPORTED;
}

#define ANSWER(function, type, key, scale)                                                         \
    int function(void *gpu, type *out) {                                                           \
        read_script();                                                                             \
        int ret = refusal(gpu, key "_return");                                                     \
        if (of(gpu, key, -1) < 0 && !ret) ret = NOT_SUPPORTED;                                     \
        *out = (type)(of(gpu, key, 0) * (scale));                                                  \
        return ret;                                                                                \
    }

ANSWER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "gen", 1)
ANSWER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "gen_max", 1)
ANSWER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "width", 1)
ANSWER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "width_max", 1)
ANSWER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "reasons", 1)
ANSWER(nvmlDeviceGetEnforcedPowerLimit, unsigned, "power_limit_mw", 1)

int nvmlInitWithFlags(unsigned flags) {
    read_script();
    (void)flags;
    return (int)number("init_return", SUCCESS);
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); } // as torch counts GPUs
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 15: return "GPU is lost";
    default: return "an error of the stub";
    }
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    read_script();
    *count = (unsigned)number("devices", 1);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) {
    read_script();
    *gpu = (void *)(intptr_t)(index + 1);
    return index < (unsigned)number("devices", 1) ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **gpu) {
    read_script();
    for (long i = 0; i < (long)number("devices", 1); i++) {
        char known[128];
        if (text_of((void *)(intptr_t)(i + 1), "uuid", known, sizeof known) == SUCCESS &&
            !strcmp(known, uuid)) {
            *gpu = (void *)(intptr_t)(i + 1);
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(void *gpu, char *out, unsigned room) {
    read_script();
    return text_of(gpu, "uuid", out, room);
}

int nvmlDeviceGetName(void *gpu, char *out, unsigned room) {
    read_script();
    return text_of(gpu, "name", out, room);
}

int nvmlSystemGetDriverVersion(char *out, unsigned room) {
    read_script();
    return look_up("driver", out, room) ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetMigMode(void *gpu, unsigned *current, unsigned *pending) {
    read_script();
    *current = *pending = (unsigned)of(gpu, "mig", 0);
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *gpu, Pci *out) {
    read_script();
    memset(out, 0, sizeof *out);
    out->bus = (unsigned)index_of(gpu) + 1;
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(void *gpu, int count, FieldValue *values) {
    read_script();
    int ret = refusal(gpu, "fields_return");
    double now = now_s();
    /* One clock for stamp and value: nobody can be kept waiting between the two. */
    static double since_1970;
    if (since_1970 == 0) since_1970 = clock_s(CLOCK_REALTIME) - now;
    double stamp = of(gpu, "timestamp", 0), factor = of(gpu, "counter_factor", 1);
    for (int i = 0; i < count && !ret; i++) {
        FieldValue *v = &values[i];
        v->timestamp = stamp < 0 ? 0 : stamp > 0 ? (int64_t)stamp
                       : (int64_t)(1e6 * (now + since_1970));
        v->ret = (int)of(gpu, "field_return", SUCCESS);
        v->type = 3;
        memset(&v->value, 0xee, sizeof v->value); /* what nobody has filled in is no number */
        if (v->field == 197 || v->field == 198) {
            const char *which = v->field == 197 ? "tx" : "rx";
            char own[16];
            snprintf(own, sizeof own, "%s_return", which);
            if (of(gpu, own, 0)) v->ret = (int)of(gpu, own, 0);
            v->type = 1;
            v->value.ui = (uint32_t)(uint64_t)(moved(gpu, which, now) * factor);
        } else if (v->field == 186) {
            if (of(gpu, "power_return", 0)) v->ret = (int)of(gpu, "power_return", 0);
            v->type = 1;
            v->value.ui = (uint32_t)of(gpu, "power_mw", 0);
        } else {
            v->ret = NOT_SUPPORTED;
        }
    }
    return ret;
}

int nvmlDeviceGetTotalEnergyConsumption(void *gpu, unsigned long long *millijoules) {
    read_script();
    *millijoules = (unsigned long long)(of(gpu, "energy_mj", 0) + of(gpu, "power_mw", 0) *
                                       (now_s() - of(gpu, "from", 0)));
    return refusal(gpu, "energy_return");
}

int nvmlDeviceGetTemperatureV(void *gpu, Temperature *out) {
    read_script();
    out->temperature = (int)of(gpu, "temperature", 40);
    return refusal(gpu, "temperature_return");
}

int nvmlDeviceGetClockInfo(void *gpu, unsigned kind, unsigned *mhz) {
    read_script();
    (void)kind;
    *mhz = (unsigned)of(gpu, "clock_mhz", 1000);
    return refusal(gpu, "clock_return");
}
