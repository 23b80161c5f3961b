#include <algorithm>
#include <map>
#include <mutex>

#include "device/cuda/driver.h"
#include "device/cuda/kernel_table.h"
#include "device/runtime/check_work.h"
#include "device/runtime/ringdp_gpu.h"

namespace ringdp::gpu {

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

// What orders writes between devices. By itself a wait lets a stream go on that does not see yet what another device
// had written to its memory before: cuda.h, CU_STREAM_WAIT_VALUE_FLUSH.
struct Ordering {
  bool flushes = false;   // after a wait, what other devices have written; on some platforms only
  bool barriers = false;  // in batches: drivers of CUDA 11.7 and later
};

CUstreamBatchMemOpParams barrier_of_all_devices() {
  CUstreamBatchMemOpParams barrier{};
  barrier.operation = CU_STREAM_MEM_OP_BARRIER;
  barrier.memoryBarrier.flags = CU_STREAM_MEMORY_BARRIER_TYPE_SYS;
  return barrier;
}

decltype(&cuStreamBatchMemOp) batch_function() {
  static const auto batch = driver_function<decltype(&cuStreamBatchMemOp)>("cuStreamBatchMemOp");
  return batch;
}

// Of the current device; found out once, on one of its streams.
Ordering ordering_on(cudaStream_t stream) {
  static std::mutex mutex;
  static std::map<int, Ordering> known;
  int device = 0;
  check("cudaGetDevice", cudaGetDevice(&device));
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(device); found != known.end()) return found->second;
  Ordering ordering;
  ordering.flushes = has_attribute(CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, device);
  CUstreamBatchMemOpParams barrier = barrier_of_all_devices();
  ordering.barriers = batch_function()(stream, 1, &barrier, 0) == CUDA_SUCCESS;
  cudaGetLastError();
  return known[device] = ordering;
}

// The steps in rows: posts and awaits are one call, in their order; what moves or sums between them is one launch, in
// which each block runs its share of every step, as with SPIN.
class StreamRun {
 public:
  StreamRun(const PlanKernel& kernel, const Work& work, DType element, cudaStream_t stream)
      : kernel_(kernel),
        work_(work),
        element_bytes_(size_of(element)),
        stream_(stream),
        ordering_(work.spans_devices ? ordering_on(stream) : Ordering()) {
    static_cast<WorkHead&>(row_) = work;
    const int all = blocks_of_device(kernel.few);
    most_blocks_ = work.blocks > 0 ? std::min<int>(work.blocks, all) : all;
  }

  void run() {
    for (int first = 0; first < work_.steps;) {
      const int end = end_of_row(first);
      is_flag(work_.step[first]) ? run_flags(first, end) : run_data(first, end);
      first = end;
    }
  }

 private:
  int end_of_row(int first) const {
    int end = first + 1;
    while (end < work_.steps && is_flag(work_.step[end]) == is_flag(work_.step[first])) ++end;
    return end;
  }

  void run_data(int first, int end) {
    row_.steps = end - first;
    std::copy(work_.step + first, work_.step + end, row_.step);
    row_.blocks = blocks_of_row(first, end);
    launch_plan("a row of steps", kernel_, row_.blocks, row_, stream_);
  }

  // Flags are of whole rows, so other ranks need not know.
  int blocks_of_row(int first, int end) const {
    int64_t bytes = 0;
    for (int s = first; s < end; ++s) bytes = std::max(bytes, work_.step[s].count * element_bytes_);
    return blocks_of(bytes / plan::kDevicePackBytes, most_blocks_);
  }

  // One barrier is before the first post: nothing is written between the steps of a row.
  void run_flags(int first, int end) const {
    static_assert(plan::kMaxDeviceSteps + 1 < 256, "what a batch may hold");
    CUstreamBatchMemOpParams operations[plan::kMaxDeviceSteps + 1];
    unsigned count = 0;
    bool needs_barrier = ordering_.barriers;
    for (int s = first; s < end; ++s) {
      if (needs_barrier && work_.step[s].verb == DeviceVerb::kPost) {
        operations[count++] = barrier_of_all_devices();
        needs_barrier = false;
      }
      operations[count++] = operation(work_.step[s]);
    }
    check("cuStreamBatchMemOp", batch_function()(stream_, count, operations, 0));
  }

  CUstreamBatchMemOpParams operation(const DeviceStep& step) const {
    const bool posts = step.verb == DeviceVerb::kPost;
    Flag& flag = posts ? work_.flags[step.peer]->of[step.slot][0][work_.rank]
                       : work_.flags[work_.rank]->of[step.slot][0][step.peer];
    CUstreamBatchMemOpParams one{};  // both kinds have the same members
    one.operation = posts ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WAIT_VALUE_64;
    one.waitValue.address = reinterpret_cast<CUdeviceptr>(&flag.value);
    one.waitValue.value64 = stream_value(work_.stream_epoch, step);
    const unsigned flush = ordering_.flushes ? unsigned{CU_STREAM_WAIT_VALUE_FLUSH} : 0;
    one.waitValue.flags = posts ? unsigned{CU_STREAM_WRITE_VALUE_DEFAULT} : unsigned{CU_STREAM_WAIT_VALUE_GEQ} | flush;
    return one;
  }

  const PlanKernel kernel_;
  const Work& work_;
  const int64_t element_bytes_;
  const cudaStream_t stream_;
  const Ordering ordering_;
  int most_blocks_ = 1;
  Work row_;
};

void run_on_stream(const PlanKernel& kernel, const Work& work, DType element, cudaStream_t stream) {
  refuse_capture(stream);
  StreamRun(kernel, work, element, stream).run();
}

}  // namespace

// The C interface of everything that runs kernels. Arguments are checked first, so bad work queues nothing.

namespace {

constexpr int kWarps = kThreads / 32;  // per thread block: each encodes or decodes blocks of elements

template <class Argument>
const Argument& known(const char* function, const void* work, size_t bytes) {
  refuse_null(function, "work", work);
  if (bytes == sizeof(Argument)) return *static_cast<const Argument*>(work);
  refuse(std::string(function) + ": work of " + std::to_string(bytes) + " bytes, where " +
         std::to_string(sizeof(Argument)) + " are known; the caller was built from other sources than this library");
}

DType element_of(int element) {
  if (element >= 0 && element < kDTypeCount) return static_cast<DType>(element);
  refuse("element " + std::to_string(element) + " is no ringdp::DType");
}

ReduceOp reduce_of(int reduce) {
  if (reduce >= 0 && reduce < kReduceOpCount) return static_cast<ReduceOp>(reduce);
  refuse("reduce " + std::to_string(reduce) + " is no ringdp::ReduceOp");
}

void run_as(DType element, ReduceOp reduce, const Work& work, int executor, cudaStream_t stream) {
  const PlanKernel kernel = plan_kernel_for(element, reduce, work.world);
  if (executor == RD_GPU_STREAM) return run_on_stream(kernel, work, element, stream);
  launch_plan("a plan", kernel, work.blocks, work, stream);
}

// Work that only moves is converted for the one kernel that moves every type.
void run(const Work& work, DType element, ReduceOp reduce, int executor, cudaStream_t stream) {
  if (executor != RD_GPU_SPIN && executor != RD_GPU_STREAM) {
    refuse("rd_gpu_run: executor " + std::to_string(executor) + "; it is RD_GPU_SPIN or RD_GPU_STREAM");
  }
  check_work(work, element);
  executor == RD_GPU_STREAM ? check_stream_work(work) : check_spin_work(work);
  if (!only_moves(work)) return run_as(element, reduce, work, executor, stream);
  Work moves = work;
  count_as_float32(moves, element);
  run_as(DType::kF32, ReduceOp::kSum, moves, executor, stream);
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
    run(known<Work>("rd_gpu_run", work, work_bytes), element_of(element), reduce_of(reduce), executor,
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
      [&] { step(known<AdamWork>("rd_gpu_adam_step", work, work_bytes), static_cast<cudaStream_t>(stream)); });
}

int rd_gpu_recode(const void* work, size_t work_bytes, void* stream) {
  return guarded(
      [&] { recode(known<CodecWork>("rd_gpu_recode", work, work_bytes), static_cast<cudaStream_t>(stream)); });
}
