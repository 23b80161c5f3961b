#include "device/runtime/links.h"

#include <algorithm>
#include <chrono>

namespace ringdp::gpu {
namespace {

constexpr int kCopies = 3;               // the first maps pages
constexpr double kSlowestNvlink = 70e9;  // PCIe 5.0 x16 carries at most 63 GB/s, an A100's NVLink 300

// PCIe 4.0 x16, each way; flags cross the root complex.
constexpr double kPcieBytesPerSecond = 25e9, kPcieBarrierSeconds = 5e-6;

}  // namespace

double speed_of_copies(const Functions& functions, int device, void* to, const void* from, int64_t bytes) {
  using Clock = std::chrono::steady_clock;
  double fastest = 0;
  for (int k = 0; k < kCopies; ++k) {
    const auto begin = Clock::now();
    if (functions.copy_now(device, to, from, static_cast<size_t>(bytes)) != 0) return 0;
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    fastest = std::max(fastest, static_cast<double>(bytes) / std::max(seconds, 1e-9));
  }
  return fastest;
}

Links links_of(double slowest) {
  Links links;
  if (slowest <= 0) return links;
  const bool pcie = slowest < kSlowestNvlink;
  const auto gigabytes = static_cast<int64_t>(slowest / 1e9);
  links.description =
      std::string("links like ") + (pcie ? "PCIe" : "NVLink") + " (" + std::to_string(gigabytes) + " GB/s)";
  if (!pcie) return links;
  links.bytes_per_second = kPcieBytesPerSecond;
  links.barrier_seconds = kPcieBarrierSeconds;
  return links;
}

}  // namespace ringdp::gpu
