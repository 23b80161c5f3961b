// NCCL's functions, looked up in whichever copy this process has: a second, different copy would break both.
#include <dlfcn.h>

#include <mutex>
#include <string>

#include "device/cuda/driver.h"
#include "device/runtime/ringdp_gpu.h"

namespace ringdp::gpu {
namespace {

constexpr char kByName[] = "libnccl.so.2";

struct Nccl {
  std::mutex mutex;  // guards the rest until NCCL is found, then it is constant
  bool found = false;
  rd_gpu_nccl_functions functions{};
};

Nccl& nccl() {
  static auto* const instance = new Nccl;
  return *instance;
}

void* open_nccl(const std::string& path) {
  if (void* const loaded = dlopen(kByName, RTLD_NOW | RTLD_NOLOAD)) return loaded;
  return dlopen(path.empty() ? kByName : path.c_str(), RTLD_NOW | RTLD_LOCAL);
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) refuse(std::string("this NCCL has no ") + name + "; ringdp needs NCCL 2.13 or later");
}

rd_gpu_nccl_functions functions_of(void* library) {
  rd_gpu_nccl_functions f{};
  find(library, "ncclGetVersion", f.get_version);
  find(library, "ncclGetUniqueId", f.get_unique_id);
  find(library, "ncclCommInitRank", f.comm_init_rank);
  find(library, "ncclCommDestroy", f.comm_destroy);
  find(library, "ncclCommAbort", f.comm_abort);
  find(library, "ncclCommGetAsyncError", f.comm_get_async_error);
  find(library, "ncclGetErrorString", f.get_error_string);
  find(library, "ncclGetLastError", f.get_last_error);
  find(library, "ncclSend", f.send);
  find(library, "ncclRecv", f.recv);
  find(library, "ncclGroupStart", f.group_start);
  find(library, "ncclGroupEnd", f.group_end);
  return f;
}

// False when there is none. That is not cached: torch may load NCCL later.
bool find_nccl(Nccl& table, const std::string& path) {
  const std::lock_guard lock(table.mutex);
  if (table.found) return true;
  void* const library = open_nccl(path);
  if (library == nullptr) {
    set_sentence(std::string("no NCCL: ") + dlerror() + "; RINGDP_NCCL can name the file");
    return false;
  }
  table.functions = functions_of(library);
  table.found = true;
  return true;
}

}  // namespace
}  // namespace ringdp::gpu

int rd_gpu_nccl(const char* path, int* version, const rd_gpu_nccl_functions** functions) {
  using namespace ringdp::gpu;
  return guarded([&] {
    refuse_null("rd_gpu_nccl", "version", version);
    refuse_null("rd_gpu_nccl", "functions", functions);
    *version = 0;
    *functions = nullptr;
    Nccl& table = nccl();
    if (!find_nccl(table, path ? path : "")) return;
    const int result = table.functions.get_version(version);
    if (result != 0) refuse(std::string("ncclGetVersion: ") + table.functions.get_error_string(result));
    *functions = &table.functions;
  });
}
