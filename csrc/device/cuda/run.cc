#include <algorithm>
#include <cstring>

#include "device/cuda/driver.h"
#include "device/cuda/kernel_table.h"
#include "device/runtime/check_work.h"
#include "device/runtime/ringdp_gpu.h"

namespace ringdp::gpu {

void run_spinning(const void* kernel, const Work& work, cudaStream_t stream) {
  launch("a plan", kernel, work.blocks, work, stream);
}

namespace {

using plan::DeviceStep;
using plan::DeviceVerb;

// A replay would wait for values that the first run has already written.
void refuse_capture(cudaStream_t stream) {
  if (!is_capturing(stream)) return;
  refuse(
      "rd_gpu_run: the executor STREAM cannot be captured in a CUDA graph, because the host counts its launches; "
      "capture where every rank has a device of its own: the executor SPIN counts there");
}

class StreamRun {
 public:
  StreamRun(const void* kernel, const Work& work, cudaStream_t stream)
      : kernel_(kernel), work_(work), stream_(stream), one_step_(work), blocks_(blocks_of_device(kernel)) {
    one_step_.steps = 1;
    one_step_.blocks = blocks_;
  }

  void run() {
    for (int s = 0; s < work_.steps;) s = is_flag(work_.step[s]) ? run_flags(s) : run_data(s);
  }

 private:
  int run_data(int index) {
    one_step_.step[0] = work_.step[index];
    launch("a step", kernel_, blocks_, one_step_, stream_);
    return index + 1;
  }

  // The posts and awaits from there on, in one call, in their order.
  int run_flags(int index) const {
    static const auto batch = driver_function<decltype(&cuStreamBatchMemOp)>("cuStreamBatchMemOp");
    CUstreamBatchMemOpParams operations[plan::kMaxDeviceSteps];
    unsigned count = 0;
    for (; index < work_.steps && is_flag(work_.step[index]); ++index)
      operations[count++] = operation(work_.step[index]);
    check("cuStreamBatchMemOp", batch(stream_, count, operations, 0));
    return index;
  }

  CUstreamBatchMemOpParams operation(const DeviceStep& step) const {
    const bool posts = step.verb == DeviceVerb::kPost;
    Flag& flag = posts ? work_.flags[step.peer]->of[step.slot][0][work_.rank]
                       : work_.flags[work_.rank]->of[step.slot][0][step.peer];
    CUstreamBatchMemOpParams one{};  // both kinds have the same members
    one.operation = posts ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WAIT_VALUE_64;
    one.waitValue.address = reinterpret_cast<CUdeviceptr>(&flag.value);
    one.waitValue.value64 = stream_value(work_, step);
    one.waitValue.flags = posts ? unsigned{CU_STREAM_WRITE_VALUE_DEFAULT} : unsigned{CU_STREAM_WAIT_VALUE_GEQ};
    return one;
  }

  const void* const kernel_;
  const Work& work_;
  const cudaStream_t stream_;
  Work one_step_;
  const int blocks_;
};

}  // namespace

void run_on_stream(const void* kernel, const Work& work, cudaStream_t stream) {
  refuse_capture(stream);
  StreamRun(kernel, work, stream).run();
}

// The C interface of everything that runs kernels. Arguments are checked first, so bad work queues nothing.

namespace {

constexpr int kWarps = kThreads / 32;  // per thread block: each encodes or decodes blocks of elements

template <class Argument>
Argument copied(const char* function, const void* work, size_t bytes) {
  refuse_null(function, "work", work);
  if (bytes != sizeof(Argument)) {
    refuse(std::string(function) + ": work of " + std::to_string(bytes) + " bytes, where " +
           std::to_string(sizeof(Argument)) + " are known; the caller was built from other sources than this library");
  }
  Argument argument;
  std::memcpy(&argument, work, sizeof argument);
  return argument;
}

DType element_of(int element) {
  if (element >= 0 && element < kDTypeCount) return static_cast<DType>(element);
  refuse("element " + std::to_string(element) + " is no ringdp::DType");
}

ReduceOp reduce_of(int reduce) {
  if (reduce >= 0 && reduce < kReduceOpCount) return static_cast<ReduceOp>(reduce);
  refuse("reduce " + std::to_string(reduce) + " is no ringdp::ReduceOp");
}

// Work that only moves is converted for the one kernel that moves every type.
const void* kernel_for(Work& work, DType element, ReduceOp reduce) {
  if (!only_moves(work)) return plan_kernel_for(element, reduce, work.world);
  count_as_float32(work, element);
  return plan_kernel_for(DType::kF32, ReduceOp::kSum, work.world);
}

void run(Work work, DType element, ReduceOp reduce, int executor, cudaStream_t stream) {
  if (executor != RD_GPU_SPIN && executor != RD_GPU_STREAM) {
    refuse("rd_gpu_run: executor " + std::to_string(executor) + "; it is RD_GPU_SPIN or RD_GPU_STREAM");
  }
  check_work(work, element);
  if (executor == RD_GPU_STREAM) check_stream_work(work);
  const void* const kernel = kernel_for(work, element, reduce);
  executor == RD_GPU_STREAM ? run_on_stream(kernel, work, stream) : run_spinning(kernel, work, stream);
}

void step(const AdamWork& work, cudaStream_t stream) {
  check_adam_work(work);
  if (work.count == 0) return;
  const void* const kernel = adam_kernels()[work.world - 1];
  launch("the fused step", kernel, blocks_of_device(kernel), work, stream);
}

void recode(const CodecWork& work, cudaStream_t stream) {
  check_codec_work(work);
  if (work.count == 0) return;
  const void* const kernel = codec_kernel_for(work.element, work.encodes);
  const int64_t most = (work.count - 1) / (kWireBlock * kWarps) + 1;
  const int blocks = static_cast<int>(std::min<int64_t>(most, blocks_of_device(kernel)));
  launch("the codec", kernel, blocks, work, stream);
}

}  // namespace

}  // namespace ringdp::gpu

using namespace ringdp::gpu;

int rd_gpu_run(const void* work, size_t work_bytes, int element, int reduce, int executor, void* stream) {
  return guarded([&] {
    run(copied<Work>("rd_gpu_run", work, work_bytes), element_of(element), reduce_of(reduce), executor,
        static_cast<cudaStream_t>(stream));
  });
}

int rd_gpu_reduces(int element, int reduce, int* out) {
  return guarded([&] {
    refuse_null("rd_gpu_reduces", "out", out);
    *out = reduces(element_of(element), reduce_of(reduce));
  });
}

int rd_gpu_adam_step(const void* work, size_t work_bytes, void* stream) {
  return guarded(
      [&] { step(copied<AdamWork>("rd_gpu_adam_step", work, work_bytes), static_cast<cudaStream_t>(stream)); });
}

int rd_gpu_recode(const void* work, size_t work_bytes, void* stream) {
  return guarded(
      [&] { recode(copied<CodecWork>("rd_gpu_recode", work, work_bytes), static_cast<cudaStream_t>(stream)); });
}
