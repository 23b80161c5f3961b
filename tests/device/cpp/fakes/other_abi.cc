// A CUDA part of another release.
extern "C" int rd_gpu_abi() { return -7; }
