#include "transport/tcp/openssl.h"

#include <dlfcn.h>

#include <atomic>
#include <memory>
#include <string>

#include "base/error.h"

namespace ringdp::transport {
namespace {

constexpr char kByName[] = "libssl.so.3";
constexpr uint64_t kNoAtExit = 0x00080000;  // OPENSSL_INIT_NO_ATEXIT: threads may still use it at process exit

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorKind::kInvalidArgument,
              "RINGDP_TLS_CERT, RINGDP_TLS_KEY and RINGDP_TLS_CA ask for TLS, which needs OpenSSL 3: " + why +
                  "; install it, name its libssl in RINGDP_OPENSSL, or unset the three on all ranks");
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) refuse(std::string("the libssl that was found has no ") + name);
}

OpenSsl functions_of(void* library) {
  OpenSsl found{};
#define RD_FIND(result, name, parameters) find(library, #name, found.name);
  RD_OPENSSL_FUNCTIONS(RD_FIND)
#undef RD_FIND
  return found;
}

}  // namespace

const OpenSsl& openssl(const char* path) {
  static std::atomic<const OpenSsl*> known = nullptr;
  if (const OpenSsl* const found = known.load(std::memory_order_acquire)) return *found;
  void* const library = dlopen(*path ? path : kByName, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) refuse(dlerror());
  auto fresh = std::make_unique<const OpenSsl>(functions_of(library));
  if (fresh->OPENSSL_init_ssl(kNoAtExit, nullptr) != 1) refuse("it does not start");
  const OpenSsl* first = nullptr;  // another thread's
  if (known.compare_exchange_strong(first, fresh.get(), std::memory_order_acq_rel)) first = fresh.release();
  return *first;
}

}  // namespace ringdp::transport
