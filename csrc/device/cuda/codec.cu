// Encoding to wire types, and decoding, as kernels: two for each type of elements.
#include "device/cuda/cuda_primitives.h"
#include "device/cuda/kernel_table.h"
#include "device/kernel/codec.h"

namespace ringdp::gpu {
namespace {

template <class T, bool kEncodes>
__global__ void __launch_bounds__(kThreads) codec_kernel(const __grid_constant__ CodecWork work) {
  run_codec<CudaPrimitives, T, kEncodes>(work);
}

template <class T>
const void* codec_kernel_of(bool encodes) {
  return encodes ? address_of(codec_kernel<T, true>) : address_of(codec_kernel<T, false>);
}

}  // namespace

const void* codec_kernel_for(DType element, bool encodes) {
  switch (element) {
    case DType::kF16:
      return codec_kernel_of<Half>(encodes);
    case DType::kBF16:
      return codec_kernel_of<BFloat16>(encodes);
    case DType::kF64:
      return codec_kernel_of<double>(encodes);
    default:
      return codec_kernel_of<float>(encodes);
  }
}

}  // namespace ringdp::gpu
