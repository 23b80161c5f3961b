// TLS 1.3 on a borrowed non-blocking socket: both sides present a certificate that the same authority has signed.
//
// Never waits, never asks for a passphrase, and sends no close_notify: groups have their own goodbye. Records are
// encrypted into memory and then written to the socket, so no signal is raised and every failed call sets errno.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "transport/tcp/openssl.h"

namespace ringdp::transport {

// One connection. Any thread; its lock is held during each call, and no call waits.
class Tls {
 public:
  // `peer`: for messages. `writes_per_key`: the key of this side changes after that many pieces of 64 KiB; AES-GCM is
  // safe for 2^24.5 records of 16 KiB.
  Tls(const OpenSsl& ssl, ssl_ctx_st* context, int fd, std::string peer, bool connects,
      uint64_t writes_per_key = uint64_t{1} << 21);
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;
  ~Tls();

  // True once this side of the handshake is done; its last bytes leave with the first ones sent. Otherwise false with
  // errno, EAGAIN: call again when bytes have arrived. The accepting side may leave it to recv().
  bool handshake();

  // As send(2) and recv(2), with errno EPROTO when TLS itself fails. Bytes that the socket did not take count as not
  // sent but are already encrypted: the same bytes must be offered again.
  ssize_t send(const void* bytes, size_t size);
  ssize_t recv(void* bytes, size_t size);

  // A message that will not be offered again: sent as a whole, or dropped while earlier ones are queued. Not to be
  // mixed with send().
  void post(const void* bytes, size_t size);

  bool has_buffered() const;    // bytes were read from the socket that recv() has not returned
  std::string failure() const;  // the reason of EPROTO and the peer; empty: none

 private:
  static int write_bio(bio_st* bio, const char* bytes, int size) noexcept;
  static int read_bio(bio_st* bio, char* bytes, int size) noexcept;
  static long control_bio(bio_st* bio, int command, long, void*) noexcept;

  void begin();                                  // before a call of OpenSSL
  ssize_t fail();                                // after one that failed: -1, or 0 at the end of the stream, with errno
  bool encrypt(const void* bytes, size_t size);  // false with errno
  bool flush();                                  // false with errno: not all encrypted bytes have been sent
  std::string reason() const;

  const OpenSsl& ssl_;
  const int fd_;
  const std::string peer_;  // "rank 1 at 10.0.0.1:4711"
  const uint64_t writes_per_key_;
  mutable std::mutex mutex_;
  ssl_st* connection_ = nullptr;
  std::vector<char> encrypted_;  // to be sent
  size_t sent_ = 0;              // bytes of encrypted_
  size_t owed_ = 0;              // bytes of the caller in encrypted_ that count as not sent
  uint64_t writes_ = 0;
  bool received_any_ = false, ended_ = false, speaks_tls_ = true;  // of the peer's byte stream
  int code_ = 0;                                                   // errno of the last read
  std::string failure_;
};

// The certificates of one rank. Any thread; its connections may outlive it.
class TlsContext {
 public:
  // PEM files: a certificate with its intermediates, its key without a passphrase, and the authority. Connects to
  // itself once, so that Error(kInvalidArgument) names the variable and the file that no peer would accept.
  TlsContext(const std::string& certificate, const std::string& key, const std::string& authority);
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;
  ~TlsContext();

  std::unique_ptr<Tls> connect(int fd, std::string peer) const {
    return std::make_unique<Tls>(ssl_, context_, fd, std::move(peer), true);
  }
  std::unique_ptr<Tls> accept(int fd, std::string peer) const {
    return std::make_unique<Tls>(ssl_, context_, fd, std::move(peer), false);
  }

 private:
  void check_with_itself(const std::string& files) const;

  const OpenSsl& ssl_;
  ssl_ctx_st* const context_;
};

}  // namespace ringdp::transport
