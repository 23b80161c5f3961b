#include "backend/errors.h"

#include <c10/util/Exception.h>

namespace ringdp::backend {

void throw_torch(const Error& error) {
  const c10::SourceLocation nowhere{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  throw c10::DistBackendError(nowhere, std::string(name_of(error.kind())) + ": " + error.what());
}

void refuse(const std::string& message) { throw_torch(Error(ErrorKind::kInvalidArgument, message)); }

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

std::exception_ptr to_torch(std::exception_ptr error) {
  if (!error) return nullptr;
  try {
    std::rethrow_exception(error);
  } catch (const Error& own) {
    try {
      throw_torch(own);
    } catch (...) {
      return std::current_exception();
    }
  } catch (...) {
    return error;
  }
}

}  // namespace ringdp::backend
