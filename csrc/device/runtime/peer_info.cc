#include "device/runtime/peer_info.h"

#include <cstring>

#include "base/of_this_process.h"
#include "device/kernel/work.h"
#include "transport/hello.h"

namespace ringdp::gpu {
namespace {

// Every change of a layout that ranks share must change one of these.
constexpr uint32_t kBuild =
    RD_GPU_ABI << 24 ^ static_cast<uint32_t>(sizeof(PeerInfo) << 12) ^ sizeof(Work) ^ sizeof(Flags);

struct ProcessKey {
  ProcessKey() { transport::fill_random(&value, sizeof value); }
  uint64_t value = 0;
};

uint64_t key_of_this_process() {
  static auto& key = *new OfThisProcess<ProcessKey>;
  return key.get().value;
}

PeerInfo blank() {
  PeerInfo info;
  info.build = kBuild;
  info.process = key_of_this_process();
  transport::fill_random(&info.token, sizeof info.token);
  return info;
}

}  // namespace

PeerInfo peer_info_of(const Functions& functions, int device) {
  rd_gpu_device facts{};
  require(functions, functions.describe(device, &facts));
  PeerInfo info = blank();
  info.usable = 1;
  info.multiprocessors = facts.multiprocessors;
  info.waits_on_streams = facts.waits_on_streams;
  info.mig = facts.mig;
  info.mps = facts.mps;
  std::memcpy(info.uuid, facts.uuid, sizeof info.uuid);
  return info;
}

PeerInfo peer_info_without(const std::string& why_not) {
  PeerInfo info = blank();
  put(info.why_not, why_not);
  return info;
}

std::vector<PeerInfo> peer_infos_from(const std::vector<std::string>& bytes) {
  auto infos = checked_infos<PeerInfo>(bytes, kBuild, "its device's card is none");
  for (PeerInfo& info : infos) end_text(info.socket);
  return infos;
}

std::string why_not(const std::vector<PeerInfo>& infos) {
  for (size_t rank = 0; rank < infos.size(); ++rank) {
    if (!infos[rank].usable) return "rank " + std::to_string(rank) + ": " + infos[rank].why_not;
  }
  return "";
}

MappingReport report_on(const std::vector<char*>& memory, const std::string& failure, bool late) {
  MappingReport report;
  for (size_t rank = 0; rank < memory.size(); ++rank) {
    if (memory[rank] != nullptr) report.reached |= 1u << rank;
  }
  report.late = late;
  put(report.failure, failure);
  return report;
}

MappingReports reports_from(const std::vector<std::string>& bytes) {
  MappingReports all;
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    MappingReport report = from_bytes<MappingReport>(bytes[rank]);
    end_text(report.failure);
    all.reached.push_back(report.reached);
    const bool is_first_late = report.late != 0 && !all.late;
    if (is_first_late || (all.first_failure.empty() && report.failure[0] != '\0')) {
      all.first_failure = "rank " + std::to_string(rank) + ": " + report.failure;
    }
    all.late |= report.late != 0;
  }
  return all;
}

std::vector<std::string> sockets_of(const std::vector<PeerInfo>& infos) {
  std::vector<std::string> names;
  for (const PeerInfo& info : infos) names.push_back(info.memory.needs_fd ? info.socket : "");
  return names;
}

}  // namespace ringdp::gpu
