#include "transport/tcp/striped_link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "base/error.h"

namespace ringdp::transport {
namespace {

uint32_t sum_of(const StripeHeader& header) { return crc32c(0, &header, offsetof(StripeHeader, sum)); }

}  // namespace

StripeHeader make_stripe_header(size_t bytes, uint32_t number) {
  StripeHeader header{static_cast<uint32_t>(bytes), number};
  header.sum = sum_of(header);
  return header;
}

StripedLink::StripedLink(std::vector<std::unique_ptr<Link>> streams, Options options)
    : options_(options), number_out_(options.first_number), number_in_(options.first_number) {
  for (auto& link : streams) streams_.push_back({std::move(link), {}, {}, {}});
}

// Small stripes stay on a stream, as if there were no other. The receiver looks at the right stream first, because both
// sides know the rule.
size_t StripedLink::after(size_t stream, size_t bytes) const {
  return bytes <= kSmallStripe ? stream : (stream + 1) % streams_.size();
}

size_t StripedLink::try_send(const void* bytes, size_t size) {
  if (size == 0) return 0;
  if (send_failure_) std::rethrow_exception(send_failure_);
  for (const Stream& stream : streams_) {
    if (stream.loss) std::rethrow_exception(stream.loss);
  }
  const Offer offer{static_cast<const std::byte*>(bytes), sent_, sent_ + size};
  offered_ = offer.end;
  try {
    send(offer);
  } catch (const Error&) {
    send_failure_ = std::current_exception();
    throw;
  }
  uint64_t sent = std::min(assigned_, offer.end);
  for (const Stream& stream : streams_) {
    if (stream.out.is_open()) sent = std::min(sent, stream.out.at);
  }
  return sent - std::exchange(sent_, sent);
}

void StripedLink::send(const Offer& offer) {
  for (Stream& stream : streams_) push(stream, offer);
  while (assigned_ < offer.end) {
    const size_t part = std::min<uint64_t>(offer.end - assigned_, kStripeBytes);
    const auto chosen = stream_with_room(part);
    if (!chosen) break;
    open(streams_[*chosen], offer, part);
    push(streams_[*chosen], offer);
    turn_out_ = after(*chosen, part);
  }
}

// A stream is asked before it is offered anything, because what it has been offered must stay with it. Only this link
// fills it, so an answer holds until that much has been sent.
std::optional<size_t> StripedLink::stream_with_room(size_t bytes) {
  const auto takes = [&](size_t stream) {
    const Outgoing& out = streams_[stream].out;
    return !out.is_open() && out.room >= bytes;
  };
  if (takes(turn_out_)) return turn_out_;
  ask_for_room();
  for (size_t i = 0; i < streams_.size(); ++i) {
    const size_t stream = (turn_out_ + i) % streams_.size();
    if (takes(stream)) return stream;
  }
  return std::nullopt;
}

void StripedLink::ask_for_room() {
  polls_.clear();
  for (const Stream& stream : streams_) stream.link->add_polls(POLLOUT, polls_);
  if (::poll(polls_.data(), polls_.size(), 0) <= 0) return;
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (polls_[i].revents != 0) streams_[i].out.room = kStripeBytes;
  }
}

void StripedLink::open(Stream& stream, const Offer& offer, size_t bytes) {
  Outgoing& out = stream.out;
  const StripeHeader header = make_stripe_header(bytes, number_out_++);
  const size_t first = std::min(bytes, kSmallStripe);
  std::memcpy(out.staged.data(), &header, sizeof header);
  std::memcpy(out.staged.data() + sizeof header, offer.bytes + (assigned_ - offer.begin), first);
  out.staged_at = 0;
  out.staged_end = sizeof header + first;
  out.at = assigned_;
  out.end = assigned_ += bytes;
  out.room -= bytes;
}

void StripedLink::push(Stream& stream, const Offer& offer) {
  Outgoing& out = stream.out;
  const auto payload_of = [](size_t staged) { return staged - std::min(staged, sizeof(StripeHeader)); };
  while (out.at < std::min(out.end, offer.end)) {
    const size_t staged = out.staged_end - out.staged_at;
    const size_t sent =
        staged > 0 ? stream.link->try_send(out.staged.data() + out.staged_at, staged)
                   : stream.link->try_send(offer.bytes + (out.at - offer.begin), std::min(out.end, offer.end) - out.at);
    if (sent == 0) return;
    if (staged > 0) {
      const size_t before = payload_of(out.staged_at);
      out.at += payload_of(out.staged_at += sent) - before;
    } else {
      out.at += sent;
    }
  }
}

size_t StripedLink::try_recv(void* bytes, size_t size) {
  if (failure_) std::rethrow_exception(failure_);
  size_t received = 0;
  try {
    while (received < size) {
      const size_t n = read(static_cast<std::byte*>(bytes) + received, size - received);
      if (n == 0) break;
      received += n;
    }
  } catch (const Error&) {
    failure_ = std::current_exception();
    if (received == 0) throw;
  }
  if (received > 0) until_silent_.reset();
  return received;
}

size_t StripedLink::read(std::byte* bytes, size_t size) {
  if (!find_next()) return 0;
  Stream& stream = streams_[*reading_];
  Incoming& in = stream.in;
  const size_t n = stream.link->try_recv(bytes, std::min(size, in.left));
  in.left -= n;
  if (in.left > 0) return n;
  turn_in_ = after(*reading_, in.header.bytes);
  in.arrived = 0;
  reading_.reset();
  ++number_in_;
  return n;
}

bool StripedLink::find_next() {
  if (reading_) return true;
  const auto is_next = [&](const Stream& stream) {
    return stream.in.is_known() && stream.in.header.number == number_in_;
  };
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (is_next(streams_[i])) reading_ = i;
  }
  for (size_t i = 0; i < streams_.size() && !reading_; ++i) {
    const size_t stream = (turn_in_ + i) % streams_.size();
    read_header(streams_[stream]);
    if (is_next(streams_[stream])) reading_ = stream;
  }
  if (!reading_) check_losses();
  return reading_.has_value();
}

void StripedLink::read_header(Stream& stream) {
  Incoming& in = stream.in;
  if (in.is_known() || stream.loss) return;
  try {
    auto* const header = reinterpret_cast<std::byte*>(&in.header);
    in.arrived += stream.link->try_recv(header + in.arrived, sizeof in.header - in.arrived);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kPeerLost) throw;
    stream.loss = std::current_exception();
  }
  if (!in.is_known()) return;
  check(stream);
  in.left = in.header.bytes;
}

void StripedLink::check(const Stream& stream) const {
  const auto& [bytes, number, sum] = stream.in.header;
  if (sum != sum_of(stream.in.header)) refuse("the header of a stripe is damaged");
  if (bytes == 0 || bytes > kStripeBytes) refuse("a stripe has " + std::to_string(bytes) + " bytes");
  if (static_cast<int32_t>(number - number_in_) < 0) refuse("stripe " + std::to_string(number) + " has come again");
  for (const Stream& other : streams_) {
    if (&other == &stream || !other.in.is_known() || other.in.header.number != number) continue;
    refuse("stripe " + std::to_string(number) + " has come twice");
  }
}

// The next stripe has not arrived. It cannot arrive on a stream whose next stripe is another one, or that is lost.
void StripedLink::check_losses() {
  std::exception_ptr loss;
  bool may_come = false;
  for (const Stream& stream : streams_) {
    if (stream.loss && !loss) loss = stream.loss;
    may_come = may_come || (!stream.loss && !stream.in.is_known());
  }
  if (!loss && !may_come) refuse("stripe " + std::to_string(number_in_) + " is missing");
  if (!loss) return;
  if (!until_silent_) until_silent_ = Deadline::after(options_.patience);
  if (!may_come || until_silent_->passed()) std::rethrow_exception(loss);
}

void StripedLink::refuse(const std::string& what) const {
  throw Error(ErrorKind::kInternal,
              "what rank " + std::to_string(options_.peer_rank) + " sent has changed on its way: " + what +
                  ". Nothing was returned; look for damaged memory or network cards between the two ranks",
              options_.peer_rank);
}

void StripedLink::add_polls(short events, std::vector<pollfd>& polls) const {
  const auto is_open = [](const Stream& stream) { return stream.out.is_open(); };
  const bool only_open = assigned_ >= offered_ && std::any_of(streams_.begin(), streams_.end(), is_open);
  for (size_t i = 0; i < streams_.size(); ++i) {
    const Stream& stream = streams_[i];
    const bool reads = reading_ ? *reading_ == i : !stream.in.is_known() && !stream.loss;
    const bool writes = is_open(stream) || !only_open;
    const int useful = (reads ? POLLIN : 0) | (writes ? POLLOUT : 0);
    if (const auto polled = static_cast<short>(events & useful)) stream.link->add_polls(polled, polls);
  }
}

}  // namespace ringdp::transport
