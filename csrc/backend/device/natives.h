// Which collectives of a backend its devices run themselves, and how they came to do so.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "backend/device/native_call.h"
#include "comm/fingerprint.h"
#include "gpu/nccl/ranks.h"
#include "gpu/neighbourhood.h"

namespace ringdp::backend {

class Natives {
 public:
  explicit Natives(std::shared_ptr<comm::Group> group) : group_(std::move(group)) {}
  ~Natives();  // what is under way ends by itself, or at its deadline

  // The lane on which the collective runs, or null: then it is staged. Collective at the first call with a tensor of a
  // device, which blocks until all ranks have come to theirs. All ranks answer alike; a rank's tensors on another device
  // than its first are always staged.
  std::shared_ptr<NativeLane> lane_for(c10::Device device, std::shared_ptr<Lane> lane, const comm::OpDesc& desc,
                                       std::chrono::milliseconds timeout);
  // The same while the caller's stream is captured: refuses what no graph can replay, and never meets.
  std::shared_ptr<NativeLane> lane_in_capture(c10::Device device, const Lane& lane, const comm::OpDesc& desc) const;
  // The same for the fused step (native_step.h); null with the reason in `why_not`.
  std::shared_ptr<NativeLane> lane_for_step(c10::Device device, std::shared_ptr<Lane> lane,
                                            std::chrono::milliseconds timeout, std::string* why_not);
  // Meets, for a group that knows its device.
  void meet(c10::Device device, std::shared_ptr<Lane> lane, std::chrono::milliseconds timeout);

  // Collective; all ranks ask alike. A flat tensor in memory that the devices of all ranks share; undefined, on all ranks,
  // where there is none: description() says why. The first meets.
  at::Tensor share(c10::Device device, std::shared_ptr<Lane> lane, int64_t elements, at::ScalarType dtype,
                   std::chrono::milliseconds timeout);
  // Collective: gives back such memory whose tensors are gone on all ranks.
  void reclaim(std::chrono::milliseconds timeout);
  bool shares(const at::Tensor& tensor) const;  // whether it lies there

  // The same as the device's plans see it: what only moves is bytes, and uneven parts are as large as the largest.
  static plan::DeviceProblem problem_of(const comm::OpDesc& desc, int rank, int world);

  std::string description() const;  // "" before the first call

 private:
  std::string why_no_shared_memory() const;
  std::unique_ptr<gpu::DeviceRanks> meet_peers(c10::Device device, const Lane& lane, std::chrono::milliseconds timeout);
  std::string why_staged(c10::Device device, const comm::OpDesc& desc) const;  // "" when it is not; once ranks have met
  std::string why_not_in_graph(c10::Device device, const comm::OpDesc& desc) const;
  gpu::Segments* segments() const { return lane_ ? lane_->segments() : nullptr; }
  std::string sharing() const;
  gpu::Surroundings surroundings(std::chrono::milliseconds timeout, comm::Place place) const;
  gpu::Surroundings surroundings_on_host(gpu::HostTelling& telling, Deadline deadline) const;
  gpu::Surroundings surroundings_of(int first, int world, Deadline deadline) const;
  std::string why_no_sharing_on_host() const;
  plan::LinkWish wish() const;
  gpu::NcclSurroundings surroundings_of_nccl(c10::Device device, const Lane& lane, std::chrono::milliseconds timeout) const;
  std::vector<std::string> tell_all(const std::string& own, comm::Place place, Deadline deadline) const;

  const std::shared_ptr<comm::Group> group_;

  mutable std::mutex mutex_;  // guards the rest
  std::optional<c10::Device> device_;
  std::shared_ptr<NativeLane> lane_;  // null: why_not_ says why
  std::string why_not_;
};

}  // namespace ringdp::backend
