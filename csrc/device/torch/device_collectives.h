// What the backend needs from devices, and the only header of csrc/device that it includes.
//
// A call with device tensors is a DeviceCall before it starts: either the devices of all ranks run the collective
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
  std::vector<Copy> inputs;         // staged calls: pinned memory of `read`, and the tensors that are copied into it
  std::vector<Copy> results;        // memory that the collective writes, and the tensors that it is copied to
  std::vector<at::Tensor> written;  // tensors that `after` writes
  std::function<void()> after;      // runs on the result stream, after the copies of `results`
};

// The arguments of a Work.
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
    comm::Ready ready;  // whether the collective may start on the host; empty: at once
  };
  virtual ~DeviceCall() = default;

  virtual c10::Device device() const = 0;
  virtual bool is_staged() const = 0;
  virtual at::Tensor pinned(at::IntArrayRef sizes, at::ScalarType dtype) const = 0;  // contiguous host memory
  // Hold the lock from start() to the end of Work::attach(). It locks nothing when the call is staged.
  virtual std::unique_lock<std::mutex> order() const = 0;
  // To be called once. `source`: the sender, for a receive.
  virtual Started start(WorkFacts facts, DeviceTensors tensors, std::optional<int> source) const = 0;
};
using DeviceCallPtr = std::shared_ptr<const DeviceCall>;

// A group's collectives on devices. Thread-safe. All ranks must make the calls that are marked as collective.
class DeviceCollectives {
 public:
  static std::unique_ptr<DeviceCollectives> make(std::shared_ptr<comm::Group> group);
  virtual ~DeviceCollectives() = default;  // work in flight continues, up to its deadline

  // A call through pinned memory; null when `device` is the CPU or not supported. DistBackendError when the caller's
  // stream is being captured, because a graph cannot replay such a call.
  virtual DeviceCallPtr stage(c10::Device device) = 0;
  // A collective that the devices run, and sets where in `desc`; or null on all ranks when it must be staged. The first
  // call is collective and blocks until all ranks have made it; tensors on another device than that of a rank's first
  // call are always staged. DistBackendError when the caller's stream is being captured and a graph cannot replay the
  // call. `alike`: the result, if the caller knows that it is in the same place of a symmetric buffer on all ranks.
  virtual DeviceCallPtr try_run(c10::Device device, comm::OpDesc& desc, std::chrono::milliseconds timeout,
                                const at::Tensor& alike) = 0;
  // The same for summing a bucket's gradients and stepping this rank's part; null with the reason in `why_not`.
  virtual DeviceCallPtr try_step(const at::Tensor& gradients, double divisor, const ShardStep& step,
                                 std::chrono::milliseconds timeout, std::string* why_not) = 0;
  // Why try_step() would return null, or ""; the first call is collective.
  virtual std::string why_no_step(c10::Device device, std::chrono::milliseconds timeout) = 0;
  // Sets the device up now instead of at the first call. Collective.
  virtual void bootstrap(c10::Device device, std::chrono::milliseconds timeout) = 0;

  // Collective, with equal arguments. A flat tensor in a new symmetric buffer; or, on all ranks, an undefined tensor
  // when there is no shared memory: describe() says why.
  virtual at::Tensor share(c10::Device device, int64_t elements, at::ScalarType dtype,
                           std::chrono::milliseconds timeout) = 0;
  // Collective: frees the symmetric buffers whose tensors are gone on all ranks.
  virtual void reclaim(std::chrono::milliseconds timeout) = 0;
  virtual bool shares(const at::Tensor& tensor) const = 0;  // whether it is in a symmetric buffer

  virtual std::string describe() const = 0;  // "" before the first call
};

// Whether tensors of such devices are accepted: CUDA if libringdp_gpu.so finds a device, and types passed to serve().
bool is_served(c10::DeviceType type);
// Accepts tensors of this type, too, whose devices and streams are those of the libringdp_gpu.so that
// RINGDP_GPU_LIBRARY names. DistBackendError when the type is accepted already, or the library finds no device.
void serve(c10::DeviceType type);

}  // namespace ringdp::backend
