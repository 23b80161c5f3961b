#include "device/runtime/library.h"

#include <dlfcn.h>

#include <vector>

#include "base/error.h"
#include "base/settings.h"

namespace ringdp::gpu {
namespace {

const char kHowTo[] =
    "; CUDA tensors need it: build ringdp where nvcc is, with RINGDP_CUDA=on, or let RINGDP_GPU_LIBRARY name the file";

std::string beside_this_code() {
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&beside_this_code), &here) == 0 || here.dli_fname == nullptr) return "";
  const std::string file = here.dli_fname;
  return file.substr(0, file.rfind('/') + 1) + "libringdp_gpu.so";
}

class Symbols {
 public:
  explicit Symbols(void* handle) : handle_(handle) {}

  template <class Function>
  void find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    if (function == nullptr && missing_.empty()) missing_ = name;
  }
  const std::string& missing() const { return missing_; }

 private:
  void* const handle_;
  std::string missing_;
};

// The name of the first missing function, or nothing.
std::string fill(void* handle, Functions& f) {
  Symbols symbols(handle);
  symbols.find("rd_gpu_error", f.error);
  symbols.find("rd_gpu_count", f.count);
  symbols.find("rd_gpu_describe", f.describe);
  symbols.find("rd_gpu_alloc", f.alloc);
  symbols.find("rd_gpu_free", f.free);
  symbols.find("rd_gpu_export", f.export_memory);
  symbols.find("rd_gpu_import", f.import_memory);
  symbols.find("rd_gpu_unimport", f.unimport_memory);
  symbols.find("rd_gpu_host_alloc", f.host_alloc);
  symbols.find("rd_gpu_host_free", f.host_free);
  symbols.find("rd_gpu_host_map", f.host_map);
  symbols.find("rd_gpu_host_unmap", f.host_unmap);
  symbols.find("rd_gpu_copy_now", f.copy_now);
  symbols.find("rd_gpu_stream", f.stream);
  symbols.find("rd_gpu_swap_capture_mode", f.swap_capture_mode);
  symbols.find("rd_gpu_copy", f.copy);
  symbols.find("rd_gpu_call", f.call);
  symbols.find("rd_gpu_await", f.await);
  symbols.find("rd_gpu_write", f.write);
  symbols.find("rd_gpu_is_capturing", f.is_capturing);
  symbols.find("rd_gpu_run", f.run);
  symbols.find("rd_gpu_reduces", f.reduces);
  symbols.find("rd_gpu_poison", f.poison);
  symbols.find("rd_gpu_deliver", f.deliver);
  symbols.find("rd_gpu_pass_abort_on", f.pass_abort_on);
  symbols.find("rd_gpu_adam_step", f.adam_step);
  symbols.find("rd_gpu_recode", f.recode);
  symbols.find("rd_gpu_kernels", f.kernels);
  symbols.find("rd_gpu_nccl", f.nccl);
  return symbols.missing();
}

// Why an open library cannot be used, or nothing.
std::string unfit(void* handle, Functions& functions) {
  decltype(&rd_gpu_abi) abi = nullptr;
  Symbols(handle).find("rd_gpu_abi", abi);
  if (abi == nullptr) return " is no CUDA part of ringdp: it has no rd_gpu_abi";
  if (abi() != RD_GPU_ABI) {
    return " has ABI " + std::to_string(abi()) + ", and this ringdp needs " + std::to_string(RD_GPU_ABI);
  }
  const std::string missing = fill(handle, functions);
  return missing.empty() ? "" : " has no " + missing;
}

}  // namespace

void require(const Functions& functions, int result) {
  if (result != 0) throw Error(ErrorKind::kInternal, std::string("CUDA: ") + functions.error());
}

void load_kernels(const Functions& functions) {
  std::vector<char> facts(size_t{1} << 16);
  require(functions, functions.kernels(facts.data(), facts.size()));
}

Library open_library(const std::string& path) {
  Library library;
  library.path = path;
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    library.why_not = std::string("the CUDA part cannot be loaded: ") + dlerror() + kHowTo;
    return library;
  }
  const std::string why = unfit(handle, library.functions);
  if (why.empty()) {
    library.opened = true;
    return library;
  }
  dlclose(handle);
  library.functions = {};
  library.why_not = path + why + kHowTo;
  return library;
}

const Library& library() {
  static const Library opened = open_library(read_env("RINGDP_GPU_LIBRARY").value_or(beside_this_code()));
  return opened;
}

}  // namespace ringdp::gpu
