// The kernels for what has been aborted: one overwrites results with NaN, or copies them to their place; the other
// tells ranks that share no memory.
#include "device/cuda/cuda_primitives.h"
#include "device/cuda/kernel_table.h"
#include "device/kernel/abort_words.h"
#include "device/kernel/poison.h"
#include "device/runtime/ringdp_gpu.h"

namespace ringdp::gpu {
namespace {

// Each reads the abort word, which costs every call; only after a failure is anything written.
constexpr int kBlocks = 1;

__global__ void __launch_bounds__(kThreads) poison_kernel(const __grid_constant__ PoisonWork work) {
  run_poison<CudaPrimitives>(work);
}

__global__ void __launch_bounds__(kThreads) abort_words_kernel(const __grid_constant__ AbortWords words) {
  run_abort_words<CudaPrimitives>(words);
}

// Beyond, one block takes longer than a second launch.
constexpr size_t kMostInOneLaunch = 64 << 10;

bool are_equally_aligned(const void* a, const void* b) {
  return (reinterpret_cast<uintptr_t>(a) - reinterpret_cast<uintptr_t>(b)) % sizeof(Pack) == 0;
}

void poison(const char* function, void* memory, size_t bytes, const uint32_t* abort, const void* from,
            cudaStream_t stream) {
  if (bytes == 0) return;
  refuse_null(function, "memory", memory);
  refuse_null(function, "abort", abort);
  const PoisonWork work = {static_cast<char*>(memory), static_cast<int64_t>(bytes), abort,
                           static_cast<const char*>(from)};
  launch("poison", address_of(poison_kernel), kBlocks, work, stream);
}

void deliver(void* memory, const void* from, size_t bytes, const uint32_t* abort, cudaStream_t stream) {
  if (bytes == 0) return;
  refuse_null("rd_gpu_deliver", "memory", memory);
  refuse_null("rd_gpu_deliver", "from", from);
  const bool in_one = bytes <= kMostInOneLaunch && are_equally_aligned(memory, from);
  if (!in_one) {
    check("cudaMemcpyAsync(" + std::to_string(bytes) + " bytes)",
          cudaMemcpyAsync(memory, from, bytes, cudaMemcpyDefault, stream));
  }
  poison("rd_gpu_deliver", memory, bytes, abort, in_one ? from : nullptr, stream);
}

void pass_abort_on(const AbortWords& words, cudaStream_t stream) {
  refuse_null("rd_gpu_pass_abort_on", "abort", words.abort);
  refuse_null("rd_gpu_pass_abort_on", "own", words.own);
  refuse_null("rd_gpu_pass_abort_on", "received", words.received);
  launch("abort words", address_of(abort_words_kernel), kBlocks, words, stream);
}

}  // namespace

std::vector<const void*> abort_kernels() { return {address_of(poison_kernel), address_of(abort_words_kernel)}; }

}  // namespace ringdp::gpu

int rd_gpu_poison(void* memory, size_t bytes, const uint32_t* abort, void* stream) {
  return ringdp::gpu::guarded(
      [&] { ringdp::gpu::poison("rd_gpu_poison", memory, bytes, abort, nullptr, static_cast<cudaStream_t>(stream)); });
}

int rd_gpu_deliver(void* memory, const void* from, size_t bytes, const uint32_t* abort, void* stream) {
  return ringdp::gpu::guarded(
      [&] { ringdp::gpu::deliver(memory, from, bytes, abort, static_cast<cudaStream_t>(stream)); });
}

int rd_gpu_pass_abort_on(uint32_t* abort, void* own, const void* received, int count, void* stream) {
  using namespace ringdp::gpu;
  return guarded([&] {
    pass_abort_on({abort, static_cast<Pack*>(own), static_cast<const Pack*>(received), count},
                  static_cast<cudaStream_t>(stream));
  });
}
