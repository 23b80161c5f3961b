// What the backend asks of devices, and the only header of csrc/device that it includes.
//
// A call with tensors of a device is a DeviceCall before it starts: either the devices of all ranks run the collective
// themselves (try_run, try_step), or it is staged through pinned host memory (stage). CallMemory
// (backend/call_memory.h) collects its tensors, and start() makes its Work.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/shard_step.h"
#include "backend/work.h"
#include "comm/fingerprint.h"
#include "comm/pending.h"

namespace ringdp::backend {

// The tensors of one call on a device.
struct DeviceTensors {
  struct Copy {
    at::Tensor memory, tensor;  // of equal shape and dtype; the tensor may have any strides
  };
  std::vector<at::Tensor> read;     // memory that the collective reads
  std::vector<Copy> inputs;         // staged: the pinned memory among them, and the tensors whose elements it gets
  std::vector<Copy> results;        // memory that the collective writes, and the tensors that get its elements
  std::vector<at::Tensor> written;  // by `after`
  std::function<void()> after;      // runs on the stream of the results once they are in their tensors
};

// What a Work of the backend is made of.
struct WorkFacts {
  int rank;
  c10d::OpType type;
  const char* title;
  const std::vector<at::Tensor>& inputs;  // for the profiler
  Work::Result result;
  Completion& completion;
};

class DeviceCall {
 public:
  struct Started {
    c10::intrusive_ptr<Work> work;
    comm::Ready ready;  // for the collective of the host: whether it may begin; empty: at once
  };
  virtual ~DeviceCall() = default;

  virtual c10::Device device() const = 0;
  virtual bool is_staged() const = 0;
  virtual at::Tensor pinned(at::IntArrayRef sizes, at::ScalarType dtype) const = 0;  // contiguous host memory
  // To be held from start() to the end of Work::attach(); of nothing when the call is staged.
  virtual std::unique_lock<std::mutex> order() const = 0;
  // Once. `source`: of a receive.
  virtual Started start(WorkFacts facts, DeviceTensors tensors, std::optional<int> source) const = 0;
};
using DeviceCallPtr = std::shared_ptr<const DeviceCall>;

// A group's collectives on devices. Any thread may call. Collective where it says so: on all ranks of the group.
class DeviceCollectives {
 public:
  static std::unique_ptr<DeviceCollectives> make(std::shared_ptr<comm::Group> group);
  virtual ~DeviceCollectives() = default;  // what is under way ends by itself, or at its deadline

  // A call through pinned memory; null: of the CPU, or of a device that is not served. DistBackendError when the
  // caller's stream records a graph, which could not replay it.
  virtual DeviceCallPtr stage(c10::Device device) = 0;
  // The collective as the devices run it: `desc` then says where. Null, on all ranks: it must be staged. Collective at
  // the first call with a tensor of a device, which blocks until all ranks have come to theirs; a rank's tensors on
  // another device than its first are always staged. DistBackendError when the caller's stream records a graph that
  // could not replay the call. `alike`: the result, of a caller who knows that all ranks' lie in the same place of
  // shared memory.
  virtual DeviceCallPtr try_run(c10::Device device, comm::OpDesc& desc, std::chrono::milliseconds timeout,
                                const at::Tensor& alike) = 0;
  // The same for the sum of a bucket's gradients and the step of this rank's part; null with the reason in `why_not`.
  virtual DeviceCallPtr try_step(const at::Tensor& gradients, double divisor, const ShardStep& step,
                                 std::chrono::milliseconds timeout, std::string* why_not) = 0;
  // "" where try_step() has a call; collective likewise.
  virtual std::string why_no_step(c10::Device device, std::chrono::milliseconds timeout) = 0;
  // Does at once what the first call would do. Collective.
  virtual void bootstrap(c10::Device device, std::chrono::milliseconds timeout) = 0;

  // Collective; all ranks ask for the same. A flat tensor in memory that the devices of all ranks share; undefined, on
  // all ranks, where there is none: describe() says why.
  virtual at::Tensor share(c10::Device device, int64_t elements, at::ScalarType dtype,
                           std::chrono::milliseconds timeout) = 0;
  // Collective: gives back such memory whose tensors are gone on all ranks.
  virtual void reclaim(std::chrono::milliseconds timeout) = 0;
  virtual bool shares(const at::Tensor& tensor) const = 0;  // whether it lies there

  virtual std::string describe() const = 0;  // "" before the first call
};

// Whether tensors of such devices are accepted: CUDA where libringdp_gpu.so finds one, and what was announced.
bool is_served(c10::DeviceType type);
// Tensors of this type, too, lie on the devices of libringdp_gpu.so, and its streams are theirs: for a device that
// RINGDP_GPU_LIBRARY brings along. DistBackendError when the type is served already, or there is no such device.
void serve(c10::DeviceType type);

}  // namespace ringdp::backend
