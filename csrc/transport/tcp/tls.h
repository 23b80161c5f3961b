// TLS 1.3 on a socket that somebody else waits for: both sides show a certificate that one authority has signed.
//
// Never waits, asks no terminal for a passphrase, says no goodbye: groups have their own. A record is sealed in memory and
// then handed to the socket, so no signal is raised and every failed call leaves errno.
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

// One connection, whose descriptor is borrowed. Any thread; its lock is held while a call runs, and no call waits.
class Tls {
 public:
  // `peer`: for messages. `writes_per_key`: after so many sealed pieces of 64 KiB the own key changes; AES-GCM is safe for
  // 2^24.5 records of 16 KiB.
  Tls(const OpenSsl& ssl, ssl_ctx_st* context, int fd, std::string peer, bool connects,
      uint64_t writes_per_key = uint64_t{1} << 21);
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;
  ~Tls();

  // True once the own side of the handshake is done; the last of it leaves with the first bytes sent. Else false with
  // errno: EAGAIN to try again when something has come. Who accepts may leave it to recv().
  bool shake();

  // As send(2) and recv(2), with errno EPROTO where TLS itself fails. Bytes that the socket did not take count as not sent,
  // but are sealed already: the same bytes must be offered again.
  ssize_t send(const void* bytes, size_t size);
  ssize_t recv(void* bytes, size_t size);

  // A message that nobody offers again: whole, or not at all where earlier ones have not left. Not together with send().
  void post(const void* bytes, size_t size);

  bool is_ahead() const;        // something has been read from the socket that nobody has received
  std::string failure() const;  // why EPROTO, and with whom; empty: all is well

 private:
  static int write_bio(bio_st* bio, const char* bytes, int size) noexcept;
  static int read_bio(bio_st* bio, char* bytes, int size) noexcept;
  static long control_bio(bio_st* bio, int command, long, void*) noexcept;

  void begin();    // a call of OpenSSL
  ssize_t fail();  // -1, or 0 at the end of the stream, with errno: why that call has not done its work
  bool seal(const void* bytes, size_t size);  // false with errno
  bool flush();                               // false with errno: some of what is sealed is still here
  std::string reason() const;

  const OpenSsl& ssl_;
  const int fd_;
  const std::string peer_;  // "rank 1 at 10.0.0.1:4711"
  const uint64_t writes_per_key_;
  mutable std::mutex mutex_;
  ssl_st* connection_ = nullptr;
  std::vector<char> sealed_;  // for the socket
  size_t gone_ = 0;           // of it
  size_t owed_ = 0;           // bytes of the caller in it, which count as not sent
  uint64_t writes_ = 0;
  bool heard_ = false, ended_ = false, speaks_tls_ = true;  // the socket: has had bytes, is at its end, had TLS's
  int code_ = 0;                                            // errno of the last read
  std::string failure_;
};

// What the connections of one rank have in common. Any thread; its connections may outlive it.
class TlsContext {
 public:
  // PEM files: a certificate with those between it and the authority, its key without a passphrase, the authority. Greets
  // itself with them: Error(kInvalidArgument) names the variable and the file that no peer would accept.
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
  void greet_itself(const std::string& files) const;

  const OpenSsl& ssl_;
  ssl_ctx_st* const context_;
};

}  // namespace ringdp::transport
