// The primitives of device/kernel/ on a CUDA device: one PTX instruction each, of the scope that the text there asks
// for.
//
// Peers' memory is never read through a cache that could be stale: loads are relaxed at system scope, also for memory
// of the same device, which another process may write. "memory" keeps the compiler from moving plain accesses across.
#pragma once
#include <cuda_fp16.h>

#include "device/kernel/push.h"

namespace ringdp::gpu {

struct CudaPrimitives {
  static __device__ int thread() { return static_cast<int>(threadIdx.x); }
  static __device__ int threads() { return static_cast<int>(blockDim.x); }
  static __device__ int block() { return static_cast<int>(blockIdx.x); }
  static __device__ int blocks() { return static_cast<int>(gridDim.x); }
  static __device__ void sync() { __syncthreads(); }
  static __device__ bool sync_or(bool flag) { return __syncthreads_or(flag) != 0; }

  static __device__ uint32_t load_acquire(const uint32_t* from) {
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
  }
  static __device__ uint64_t load_acquire(const uint64_t* from) {
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
  }
  static __device__ void store_release(uint32_t* to, uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
  }
  static __device__ void store_release(uint64_t* to, uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
  }

  static __device__ Pack load(const Pack* from) {
    Pack pack;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pack.words[0]), "=r"(pack.words[1]), "=r"(pack.words[2]), "=r"(pack.words[3])
                 : "l"(from));
    return pack;
  }
  static __device__ void store(Pack* to, Pack pack) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(pack.words[0]),
                 "r"(pack.words[1]), "r"(pack.words[2]), "r"(pack.words[3])
                 : "memory");
  }
  static __device__ MarkedWords load_words(const MarkedWords* from) {
    MarkedWords words;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(words.of[0]), "=l"(words.of[1]) : "l"(from));
    return words;
  }
  static __device__ void store_words(MarkedWords* to, MarkedWords words) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(words.of[0]), "l"(words.of[1])
                 : "memory");
  }

  static __device__ uint32_t compare_and_swap(uint32_t* place, uint32_t old, uint32_t wanted) {
    return atomicCAS_system(place, old, wanted);
  }
  static __device__ uint32_t add_one(uint32_t* place) {
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(place) : "memory");
    return before;
  }
  static __device__ uint64_t clock_ns() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
  }

  static constexpr int kWarp = 32;
  static __device__ uint32_t largest_of_warp(uint32_t value) { return __reduce_max_sync(~0u, value); }
  static __device__ bool any_of_warp(bool flag) { return __any_sync(~0u, flag) != 0; }

  static __device__ float half_to_float(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
  static __device__ uint16_t float_to_half(float value) { return __half_as_ushort(__float2half_rn(value)); }
  static __device__ float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
  static __device__ float root(float value) { return __fsqrt_rn(value); }
};

}  // namespace ringdp::gpu
