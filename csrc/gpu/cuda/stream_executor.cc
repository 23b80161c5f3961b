#include "gpu/cuda/driver.h"
#include "gpu/cuda/executor.h"
#include "gpu/cuda/launch.h"

namespace ringdp::gpu {
namespace {

using plan::DeviceStep;
using plan::DeviceVerb;

// A replay would wait for values that the first run has written.
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
    for (int s = 0; s < work_.steps; ++s) run(work_.step[s]);
  }

 private:
  void run(const DeviceStep& step) {
    if (step.verb == DeviceVerb::kPost) return post(step);
    if (step.verb == DeviceVerb::kAwait) return await(step);
    one_step_.step[0] = step;
    launch("a step", kernel_, blocks_, one_step_, stream_);
  }

  void post(const DeviceStep& step) const {
    static const auto write = driver_function<decltype(&cuStreamWriteValue64)>("cuStreamWriteValue64");
    Flag& flag = work_.flags[step.peer]->of[step.slot][0][work_.rank];
    check("cuStreamWriteValue64", write(stream_, reinterpret_cast<CUdeviceptr>(&flag.value), stream_value(work_, step),
                                        CU_STREAM_WRITE_VALUE_DEFAULT));
  }
  void await(const DeviceStep& step) const {
    static const auto wait = driver_function<decltype(&cuStreamWaitValue64)>("cuStreamWaitValue64");
    Flag& flag = work_.flags[work_.rank]->of[step.slot][0][step.peer];
    check("cuStreamWaitValue64",
          wait(stream_, reinterpret_cast<CUdeviceptr>(&flag.value), stream_value(work_, step), CU_STREAM_WAIT_VALUE_GEQ));
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

}  // namespace ringdp::gpu
