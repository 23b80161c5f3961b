// Decides which collectives of a backend its devices run, and sets the devices up.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "device/nccl/ranks.h"
#include "device/runtime/peer_memory.h"
#include "device/torch/device_collectives.h"
#include "device/torch/device_queue.h"

namespace ringdp::backend {

class DeviceDispatcher final : public DeviceCollectives {
 public:
  explicit DeviceDispatcher(std::shared_ptr<comm::Group> group) : group_(std::move(group)) {}
  ~DeviceDispatcher() override;

  DeviceCallPtr stage(c10::Device device) override;
  DeviceCallPtr try_run(c10::Device device, comm::OpDesc& desc, std::chrono::milliseconds timeout,
                        const at::Tensor& alike) override;
  DeviceCallPtr try_step(const at::Tensor& gradients, double divisor, const ShardStep& step,
                         std::chrono::milliseconds timeout, std::string* why_not) override;
  std::string why_no_step(c10::Device device, std::chrono::milliseconds timeout) override;
  void bootstrap(c10::Device device, std::chrono::milliseconds timeout) override;
  at::Tensor share(c10::Device device, int64_t elements, at::ScalarType dtype,
                   std::chrono::milliseconds timeout) override;
  void reclaim(std::chrono::milliseconds timeout) override;
  bool shares(const at::Tensor& tensor) const override;
  std::string describe() const override;

 private:
  using QueuePtr = std::shared_ptr<DeviceQueue>;
  using PoolPtr = std::shared_ptr<StreamPool>;

  // The queue on which a collective or a step runs; null when it must be staged, or with the reason in `why_not`. In a
  // capture nothing can be set up: queue_in_capture() throws a DistBackendError that says why a call cannot be
  // replayed.
  QueuePtr queue_for(const PoolPtr& pool, const comm::OpDesc& desc, std::chrono::milliseconds timeout);
  QueuePtr queue_in_capture(const StreamPool& pool, const comm::OpDesc& desc) const;
  QueuePtr queue_for_step(c10::Device device, std::chrono::milliseconds timeout, std::string* why_not);
  std::string why_staged(c10::Device device,
                         const comm::OpDesc& desc) const;  // "" when it is not; call after bootstrap()
  std::string why_not_in_graph(c10::Device device, const comm::OpDesc& desc) const;
  // The collective as device plans see it: moves are of bytes, and all parts are as large as the largest.
  plan::Problem problem_of(const comm::OpDesc& desc) const;

  void bootstrap(const PoolPtr& pool, std::chrono::milliseconds timeout);
  std::unique_ptr<gpu::DeviceRanks> bootstrap_peers(StreamPool& pool, std::chrono::milliseconds timeout);
  std::string why_no_shared_memory() const;
  std::string why_no_sharing_on_host() const;
  gpu::BootstrapContext context(std::chrono::milliseconds timeout, comm::Place place) const;
  gpu::BootstrapContext context_on_host(gpu::HostAllGather& gather, Deadline deadline) const;
  gpu::BootstrapContext context_of(int first, int world, Deadline deadline) const;
  gpu::NcclBootstrapContext context_of_nccl(StreamPool& pool, std::chrono::milliseconds timeout) const;
  plan::LinkSettings link_settings() const;
  std::vector<std::string> all_gather(const std::string& own, comm::Place place, Deadline deadline) const;

  gpu::SymmetricBuffers* buffers() const { return queue_ ? queue_->buffers() : nullptr; }
  std::string describe_sharing() const;

  const std::shared_ptr<comm::Group> group_;
  StreamPools pools_;

  mutable std::mutex mutex_;  // guards the rest
  std::optional<c10::Device> device_;
  QueuePtr queue_;  // null: why_not_ says why
  std::string why_not_;
};

}  // namespace ringdp::backend
