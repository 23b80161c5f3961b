#include "transport/tcp/tcp_link.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "transport/tcp/tcp_socket.h"

namespace ringdp::transport {
namespace {

bool is_loss(int code) {
  return code == ECONNRESET || code == EPIPE || code == ETIMEDOUT || code == EHOSTUNREACH || code == ENETUNREACH ||
         code == ENETDOWN || code == ECONNABORTED || code == ENOTCONN;
}

}  // namespace

TcpLink::TcpLink(Socket socket, int peer_rank, std::string peer_address, Options options)
    : socket_(std::move(socket)), rank_(options.rank), peer_rank_(peer_rank), peer_address_(std::move(peer_address)) {
  if (options.sharing > 0) window_.emplace(socket_.get(), options.sharing);
  if (options.most_unsent > 0) limit_unsent(socket_.get(), options.most_unsent);
  if (options.checked) checked_ = std::make_unique<Checked>();
}

size_t TcpLink::try_send(const void* bytes, size_t size) {
  if (size == 0) return 0;
  if (!checked_) return send(nullptr, 0, bytes, size);
  RecordWriter& out = checked_->out;
  const size_t offered = out.offer(bytes, size);
  return out.sent(send(out.header(), out.header_left(), bytes, offered));
}

size_t TcpLink::send(const void* header, size_t header_size, const void* bytes, size_t size) {
  size = std::min(size, kLargestRecord);
  iovec parts[] = {{const_cast<void*>(header), header_size}, {const_cast<void*>(bytes), size}};
  const ssize_t sent = header_size > 0 ? socket_.view().send(parts, 2) : socket_.view().send(parts + 1, 1);
  if (sent < 0) {
    check(errno, "send");
    return 0;
  }
  if (window_) window_->sent(static_cast<size_t>(sent));
  return static_cast<size_t>(sent);
}

size_t TcpLink::try_recv(void* bytes, size_t size) {
  // recv() of no bytes returns 0, which would look like the end of the stream.
  if (size == 0) return 0;
  if (!checked_) return receive(bytes, size, nullptr, 0);
  size_t got = 0;
  while (got < size && open_record()) {
    const size_t n = read_record(static_cast<std::byte*>(bytes) + got, size - got);
    if (n == 0) break;
    got += n;
  }
  return got;
}

bool TcpLink::open_record() {
  Checked& c = *checked_;
  if (c.in.left() > 0) return true;
  if (c.end - c.begin < kRecordHeader) {
    std::memmove(c.ahead.data(), c.ahead.data() + c.begin, c.end - c.begin);
    c.end -= std::exchange(c.begin, 0);
    c.end += receive(c.ahead.data() + c.end, c.ahead.size() - c.end, nullptr, 0);
    if (c.end < kRecordHeader) return false;
  }
  RecordHeader header;
  std::memcpy(header.data(), c.ahead.data() + c.begin, kRecordHeader);
  c.begin += kRecordHeader;
  if (!c.in.open(header)) refuse_damaged("the header of a segment is damaged, or segments are missing");
  return true;
}

size_t TcpLink::read_record(std::byte* bytes, size_t size) {
  Checked& c = *checked_;
  const size_t wanted = std::min(size, c.in.left());
  size_t got = std::min(wanted, c.end - c.begin);
  if (got > 0) {
    std::memcpy(bytes, c.ahead.data() + c.begin, got);
    c.begin += got;
  } else {
    c.begin = c.end = 0;
    const size_t ahead = wanted == c.in.left() ? c.ahead.size() : 0;
    const size_t all = receive(bytes, wanted, c.ahead.data(), ahead);
    got = std::min(all, wanted);
    c.end = all - got;
  }
  if (!c.in.take(bytes, got)) {
    const RecordReader::Damage& damage = c.in.damage();
    refuse_damaged("of " + std::to_string(damage.bytes) + " bytes the CRC-32C is " + std::to_string(damage.got) +
                   ", and " + std::to_string(damage.expected) + " came with them");
  }
  return got;
}

size_t TcpLink::receive(void* bytes, size_t size, void* ahead, size_t ahead_size) {
  iovec parts[] = {{bytes, size}, {ahead, ahead_size}};
  const ssize_t got = socket_.view().recv(parts, ahead_size > 0 ? 2 : 1);
  if (got > 0) return static_cast<size_t>(got);
  if (got == 0) lose("closed by the other side");
  check(errno, "recv");
  return 0;
}

void TcpLink::check(int code, const char* call) const {
  if (code == EAGAIN || code == EWOULDBLOCK || code == EINTR) return;
  if (const std::string why = socket_.view().failure(); !why.empty()) refuse_damaged(why);
  if (is_loss(code)) lose(std::generic_category().message(code));
  throw Error(ErrorKind::kInternal,
              std::string(call) + " on the TCP link to rank " + std::to_string(peer_rank_) + " at " + peer_address_ +
                  ": " + std::generic_category().message(code) + " (errno " + std::to_string(code) + ")",
              peer_rank_);
}

void TcpLink::refuse_damaged(const std::string& what) const {
  throw Error(
      ErrorKind::kInternal,
      "what rank " + std::to_string(peer_rank_) + " at " + peer_address_ + " sent to rank " + std::to_string(rank_) +
          " over TCP has changed on its way: " + what +
          ". Nothing was returned; a network card, a proxy or memory on that way is damaged (`ethtool -K DEVICE "
          "tx off rx off` leaves the card out), or somebody changes the traffic",
      peer_rank_);
}

void TcpLink::lose(const std::string& how) const {
  throw Error(ErrorKind::kPeerLost,
              "the TCP link to rank " + std::to_string(peer_rank_) + " at " + peer_address_ + " broke: " + how +
                  "; its process has ended or its host cannot be reached, look at that rank's own output first",
              peer_rank_);
}

}  // namespace ringdp::transport
