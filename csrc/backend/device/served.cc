#include "backend/device/served.h"

#include <map>
#include <mutex>

#include "backend/device/cuda_core.h"
#include "backend/errors.h"

namespace ringdp::backend {
namespace {

struct Served {
  std::mutex mutex;  // guards cores
  std::map<c10::DeviceType, DeviceCore*> cores;
};

Served& served() {
  static Served* const instance = new Served;
  return *instance;
}

}  // namespace

DeviceCore* core_of(c10::DeviceType type) {
  if (type == c10::kCPU) return nullptr;
  if (type == c10::kCUDA) return cuda_core();
  const std::lock_guard lock(served().mutex);
  const auto found = served().cores.find(type);
  return found == served().cores.end() ? nullptr : found->second;
}

void serve(c10::DeviceType type, DeviceCore& core) {
  const std::lock_guard lock(served().mutex);
  const bool own = type == c10::kCPU || type == c10::kCUDA;
  if (own || !served().cores.emplace(type, &core).second) {
    const std::string name = c10::DeviceTypeName(type, /*lower_case=*/true);
    refuse("serve_device: " + name + " is served by ringdp itself, or already");
  }
}

}  // namespace ringdp::backend
