/* What torch's libraries ask of the runtime at their start, and the project never calls. */

#include <stdio.h>

#define UNBUILT(name)                                                    \
  __attribute__((visibility("default"))) int name(void) {                \
    fprintf(stderr, "stand-in: " #name " is not built\n");               \
    return 801; /* cudaErrorNotSupported */                              \
  }

UNBUILT(cudaDeviceEnablePeerAccess)
UNBUILT(cudaDeviceGetDefaultMemPool)
UNBUILT(cudaFreeAsync)
UNBUILT(cudaGetSymbolAddress)
UNBUILT(cudaGraphDebugDotPrint)
UNBUILT(cudaGraphDestroy)
UNBUILT(cudaGraphExecDestroy)
UNBUILT(cudaGraphGetNodes)
UNBUILT(cudaGraphInstantiateWithFlags)
UNBUILT(cudaGraphLaunch)
UNBUILT(cudaGraphNodeGetDependencies)
UNBUILT(cudaMallocAsync)
UNBUILT(cudaMemPoolGetAttribute)
UNBUILT(cudaMemPoolSetAccess)
UNBUILT(cudaMemPoolSetAttribute)
UNBUILT(cudaMemPoolTrimTo)
UNBUILT(cudaMemcpyPeerAsync)
UNBUILT(cudaMemcpyToSymbol)
UNBUILT(cudaStreamAddCallback)
UNBUILT(cudaStreamBeginCapture)
UNBUILT(cudaStreamEndCapture)
