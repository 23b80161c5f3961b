#include "transport/tcp/tls.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/error.h"
#include "base/settings.h"
#include "base/unique_fd.h"

namespace ringdp::transport {
namespace {

// From OpenSSL's headers.
constexpr int kSetReadAhead = 41, kSetSessionCache = 44, kSetMinimum = 123;
constexpr int kTls13 = 0x0304, kPem = 1, kVerifyBoth = 0x01 | 0x02;
constexpr int kFlush = 11, kReadAgain = 0x01 | 0x08, kSourceSink = 0x0400;
constexpr unsigned long kReasonMask = 0x7FFFFF, kFirstAlert = 1000, kLastAlert = 1255;

constexpr size_t kPiece = 64 << 10;  // encrypted at once: four records
constexpr size_t kReadAtOnce = 64 << 10;
constexpr int kMostRounds = 16;  // a handshake takes three

// Without this OpenSSL asks on the terminal.
int no_passphrase(char*, int, int, void*) { return -1; }

std::string reason_of(const OpenSsl& ssl) {
  const char* const text = ssl.ERR_reason_error_string(ssl.ERR_get_error());
  return text ? text : "no reason given";
}

void check_file(const char* variable, const std::string& path) {
  if (path.empty()) {
    throw Error(ErrorKind::kInvalidArgument,
                std::string(variable) +
                    " is not set: TLS between hosts needs RINGDP_TLS_CERT, RINGDP_TLS_KEY and RINGDP_TLS_CA; "
                    "set all three on all ranks, or none");
  }
  if (::access(path.c_str(), R_OK) == 0) return;
  const int code = errno;
  throw Error(ErrorKind::kInvalidArgument, std::string(variable) + "=" + path +
                                               " cannot be read: " + std::generic_category().message(code) +
                                               "; it names a PEM file of this host");
}

ssl_ctx_st* new_context(const OpenSsl& ssl) {
  ssl_ctx_st* const context = ssl.SSL_CTX_new(ssl.TLS_method());
  if (context == nullptr) throw Error(ErrorKind::kInternal, "OpenSSL makes no context: " + reason_of(ssl));
  return context;
}

}  // namespace

Tls::Tls(const OpenSsl& ssl, ssl_ctx_st* context, int fd, std::string peer, bool connects, uint64_t writes_per_key)
    : ssl_(ssl), fd_(fd), peer_(std::move(peer)), writes_per_key_(writes_per_key), connection_(ssl.SSL_new(context)) {
  static bio_method_st* const method = [&ssl] {
    bio_method_st* const made = ssl.BIO_meth_new(kSourceSink, "ringdp");
    ssl.BIO_meth_set_write(made, write_bio);
    ssl.BIO_meth_set_read(made, read_bio);
    ssl.BIO_meth_set_ctrl(made, control_bio);
    return made;
  }();
  bio_st* const bio = connection_ ? ssl.BIO_new(method) : nullptr;
  if (bio == nullptr) {
    ssl.SSL_free(connection_);
    throw Error(ErrorKind::kInternal, "OpenSSL makes no connection: " + reason_of(ssl));
  }
  ssl.BIO_set_data(bio, this);
  ssl.BIO_set_init(bio, 1);
  ssl.SSL_set_bio(connection_, bio, bio);
  connects ? ssl.SSL_set_connect_state(connection_) : ssl.SSL_set_accept_state(connection_);
}

Tls::~Tls() { ssl_.SSL_free(connection_); }

int Tls::write_bio(bio_st* bio, const char* bytes, int size) noexcept {
  auto& self = *static_cast<Tls*>(openssl().BIO_get_data(bio));
  self.encrypted_.insert(self.encrypted_.end(), bytes, bytes + size);
  return size;
}

int Tls::read_bio(bio_st* bio, char* bytes, int size) noexcept {
  const OpenSsl& ssl = openssl();
  auto& self = *static_cast<Tls*>(ssl.BIO_get_data(bio));
  ssl.BIO_clear_flags(bio, kReadAgain);
  const ssize_t got = ::recv(self.fd_, bytes, static_cast<size_t>(size), MSG_DONTWAIT);
  self.code_ = got < 0 ? errno : 0;
  self.ended_ = got == 0;
  if (self.code_ == EAGAIN || self.code_ == EINTR) ssl.BIO_set_flags(bio, kReadAgain);
  // The first byte of a record is its type, 20 to 24.
  if (got > 0 && !std::exchange(self.received_any_, true)) self.speaks_tls_ = bytes[0] >= 20 && bytes[0] <= 24;
  return static_cast<int>(got);
}

long Tls::control_bio(bio_st*, int command, long, void*) noexcept { return command == kFlush ? 1 : 0; }

bool Tls::handshake() {
  const std::lock_guard lock(mutex_);
  begin();
  if (ssl_.SSL_do_handshake(connection_) == 1) return true;
  flush();
  fail();
  return false;
}

ssize_t Tls::send(const void* bytes, size_t size) {
  const std::lock_guard lock(mutex_);
  size_t taken = 0;
  while (taken < size) {
    const size_t piece = std::min(size - taken, kPiece);
    if (owed_ == 0 && !encrypt(static_cast<const char*>(bytes) + taken, piece)) break;
    if (owed_ == 0) owed_ = piece;
    if (!flush()) break;
    const size_t settled = std::min(owed_, size - taken);
    owed_ -= settled;
    taken += settled;
  }
  return taken > 0 ? static_cast<ssize_t>(taken) : -1;
}

void Tls::post(const void* bytes, size_t size) {
  const std::lock_guard lock(mutex_);
  if (flush() && encrypt(bytes, size)) flush();
}

ssize_t Tls::recv(void* bytes, size_t size) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) {
    errno = EPROTO;
    return -1;
  }
  begin();
  size_t got = 0;
  for (size_t n = 0; got < size; got += n) {
    if (ssl_.SSL_read_ex(connection_, static_cast<char*>(bytes) + got, size - got, &n) == 1) continue;
    const ssize_t why = fail();
    const int code = errno;
    if (owed_ == 0) flush();  // the handshake, or an alert
    errno = code;
    return got > 0 ? static_cast<ssize_t>(got) : why;
  }
  return static_cast<ssize_t>(got);
}

bool Tls::has_buffered() const {
  const std::lock_guard lock(mutex_);
  return ssl_.SSL_has_pending(connection_) == 1;
}

std::string Tls::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Tls::begin() {
  ssl_.ERR_clear_error();
  code_ = 0;
  ended_ = false;
}

bool Tls::encrypt(const void* bytes, size_t size) {
  begin();
  if (++writes_ % writes_per_key_ == 0) ssl_.SSL_key_update(connection_, /*SSL_KEY_UPDATE_NOT_REQUESTED*/ 0);
  size_t written = 0;
  if (ssl_.SSL_write_ex(connection_, bytes, size, &written) == 1) return true;
  fail();
  return false;
}

bool Tls::flush() {
  while (sent_ < encrypted_.size()) {
    const ssize_t n = ::send(fd_, encrypted_.data() + sent_, encrypted_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) return false;
    sent_ += static_cast<size_t>(n);
  }
  encrypted_.clear();
  sent_ = 0;
  return true;
}

ssize_t Tls::fail() {
  const bool is_of_socket = ended_ || code_ != 0;
  if (!is_of_socket && failure_.empty()) failure_ = "TLS with " + peer_ + " failed: " + reason();
  errno = ended_ ? ECONNRESET : code_ != 0 ? code_ : EPROTO;
  return ended_ ? 0 : -1;
}

std::string Tls::reason() const {
  if (!speaks_tls_) return "it does not speak TLS";
  const long verified = ssl_.SSL_get_verify_result(connection_);
  if (verified != 0) {
    return std::string("its certificate is not accepted here, ") + ssl_.X509_verify_cert_error_string(verified);
  }
  const unsigned long error = ssl_.ERR_get_error(), number = error & kReasonMask;
  const char* const text = ssl_.ERR_reason_error_string(error);
  const std::string said = text ? text : "no reason given";
  return number >= kFirstAlert && number <= kLastAlert ? "it refuses this side, " + said : said;
}

TlsContext::TlsContext(const std::string& certificate, const std::string& key, const std::string& authority)
    : ssl_(openssl(read_env("RINGDP_OPENSSL").value_or("").c_str())), context_(new_context(ssl_)) {
  try {
    check_file("RINGDP_TLS_CERT", certificate);
    check_file("RINGDP_TLS_KEY", key);
    check_file("RINGDP_TLS_CA", authority);
    const std::string cert_file = "RINGDP_TLS_CERT=" + certificate, ca_file = "RINGDP_TLS_CA=" + authority;
    const char no_certificate[] = " holds no certificate in PEM";
    const auto require = [this](bool works, const std::string& what) {
      if (!works) throw Error(ErrorKind::kInvalidArgument, what + ": " + reason_of(ssl_));
    };
    ssl_.ERR_clear_error();
    ssl_.SSL_CTX_ctrl(context_, kSetMinimum, kTls13, nullptr);
    ssl_.SSL_CTX_ctrl(context_, kSetReadAhead, 1, nullptr);
    ssl_.SSL_CTX_ctrl(context_, kSetSessionCache, 0, nullptr);
    ssl_.SSL_CTX_set_num_tickets(context_, 0);
    ssl_.SSL_CTX_set_default_read_buffer_len(context_, kReadAtOnce);
    ssl_.SSL_CTX_set_default_passwd_cb(context_, no_passphrase);
    ssl_.SSL_CTX_set_verify(context_, kVerifyBoth, nullptr);
    require(ssl_.SSL_CTX_use_certificate_chain_file(context_, certificate.c_str()) == 1, cert_file + no_certificate);
    require(ssl_.SSL_CTX_use_PrivateKey_file(context_, key.c_str(), kPem) == 1,
            "RINGDP_TLS_KEY=" + key + " is not the key of " + cert_file + ", in PEM and without a passphrase");
    require(ssl_.SSL_CTX_load_verify_locations(context_, authority.c_str(), nullptr) == 1, ca_file + no_certificate);
    check_with_itself(cert_file + " and " + ca_file);
  } catch (const Error&) {
    ssl_.SSL_CTX_free(context_);
    throw;
  }
}

TlsContext::~TlsContext() { ssl_.SSL_CTX_free(context_); }

// So that the rank itself reports a certificate that has expired or is from another authority.
void TlsContext::check_with_itself(const std::string& files) const {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) throw_errno("socketpair");
  const UniqueFd near(ends[0]), far(ends[1]);
  const auto client = connect(near.get(), "itself"), server = accept(far.get(), "itself");
  char byte = 0;
  for (int round = 0; round < kMostRounds; ++round) {
    if (client->handshake()) client->send(&byte, 1);
    if (server->recv(&byte, 1) == 1) return;
    for (const Tls* side : {client.get(), server.get()}) {
      if (side->failure().empty()) continue;
      throw Error(ErrorKind::kInvalidArgument,
                  "no rank would accept " + files + ": " + side->failure() + "; one authority signs for all ranks");
    }
  }
  throw Error(ErrorKind::kInternal, "a handshake of TLS with itself did not end");
}

}  // namespace ringdp::transport
