#include "device/runtime/signature.h"

#include <string>

#include "base/error.h"
#include "plan/plan.h"

namespace ringdp::gpu {
namespace {

static_assert(sizeof(Signature) == plan::kPackBytes);

char* place_of(char* memory, const Signature& signature) { return memory + signature.writer * sizeof(Signature); }

constexpr char kAdvice[] = "as behind an IOMMU; `nvidia-smi topo -p2p rw` shows what these devices can";

void copy(const Functions& functions, int device, void* to, const void* from) {
  const int result = functions.copy_now(device, to, from, sizeof(Signature));
  if (result == RD_GPU_LATE) {
    throw Error(ErrorKind::kTimeout,
                std::string("it is mapped, and accesses do not end, ") + kAdvice + ": CUDA: " + functions.error());
  }
  require(functions, result);
}

void expect(const Functions& functions, int device, char* memory, const Signature& signature, const char* what,
            Signature* pinned) {
  *pinned = {};
  copy(functions, device, pinned, place_of(memory, signature));
  if (pinned->token == signature.token && pinned->owner == signature.owner && pinned->writer == signature.writer) {
    return;
  }
  throw Error(ErrorKind::kInternal, std::string("it is mapped, and ") + what + ": accesses go astray, " + kAdvice);
}

}  // namespace

void sign(const Functions& functions, int device, char* memory, const Signature& signature, Signature* pinned) {
  *pinned = signature;
  copy(functions, device, place_of(memory, signature), pinned);
}

void check_signatures(const Functions& functions, int device, char* memory, const Signature& owners,
                      const Signature& own, Signature* pinned) {
  expect(functions, device, memory, owners, "what its rank wrote is not read", pinned);
  sign(functions, device, memory, own, pinned);
  expect(functions, device, memory, own, "what is written is not read back", pinned);
}

}  // namespace ringdp::gpu
