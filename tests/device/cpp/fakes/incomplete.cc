// A CUDA part that says it fits and has nothing.
#include "device/runtime/ringdp_gpu.h"

int rd_gpu_abi() { return RD_GPU_ABI; }
const char* rd_gpu_error() { return ""; }
