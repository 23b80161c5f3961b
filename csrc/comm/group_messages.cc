// The part of Group that handles point-to-point messages.
#include <algorithm>

#include "comm/group.h"

namespace ringdp::comm {

std::shared_ptr<Message> Group::send(MessageRequest request) { return post(Direction::kSend, std::move(request)); }

std::shared_ptr<Message> Group::recv(MessageRequest request) { return post(Direction::kReceive, std::move(request)); }

void Group::check_request(Direction direction, const MessageRequest& request) const {
  const std::string call = direction == Direction::kSend ? "send" : "recv";
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::kInvalidArgument, call + " on rank " + std::to_string(config_.rank) + ": " + why);
  };
  const bool any = direction == Direction::kReceive && request.peer == kAnySource;
  if (!any && (request.peer < 0 || request.peer >= config_.world)) {
    refuse("rank " + std::to_string(request.peer) + " is no rank of this group of " + std::to_string(config_.world));
  }
  if (request.peer == config_.rank) refuse("a rank exchanges no messages with itself: copy the tensor instead");
  if (config_.world == 1) refuse("this group has no other rank");
  if (request.count < 0) refuse("a message cannot have " + std::to_string(request.count) + " elements");
}

std::shared_ptr<Message> Group::post(Direction direction, MessageRequest request) {
  refuse_in_child();
  check_request(direction, request);
  const auto message = std::make_shared<Message>(direction, std::move(request));
  {
    const std::lock_guard lock(mutex_);
    refuse_after_end(*message);
    posted_.push_back(message);
    ++messages_;
    mail_posted_.store(true, std::memory_order_relaxed);
    pending_.fetch_add(1, std::memory_order_release);
  }
  runtime_.engine.kick();
  return message;
}

// A send whose input is not ready holds back later sends, which must not overtake it. After a failure all are taken.
std::shared_ptr<Message> Group::take_posted() {
  const std::lock_guard lock(mutex_);
  bool sends_wait = false;
  const auto may_go = [&](const std::shared_ptr<Message>& message) {
    if (message->direction() == Direction::kReceive || error_) return true;
    sends_wait = sends_wait || !message->may_begin();
    return !sends_wait;
  };
  const auto found = std::find_if(posted_.begin(), posted_.end(), may_go);
  std::shared_ptr<Message> message;
  if (found != posted_.end()) {
    message = std::move(*found);
    posted_.erase(found);
  }
  mail_posted_.store(!posted_.empty(), std::memory_order_relaxed);
  return message;
}

std::vector<std::shared_ptr<Message>> Group::held_back() const {
  const std::lock_guard lock(mutex_);
  return {posted_.begin(), posted_.end()};
}

bool Group::advance_messages() {
  bool moved = false;
  try {
    while (mail_posted_.load(std::memory_order_relaxed)) {
      auto message = take_posted();
      if (!message) break;
      mailbox_.post(std::move(message));
    }
    moved = mailbox_.advance();
    if (moved) counters_.add(mailbox_.take_totals());
    finish_messages();
    return moved;
  } catch (const Error& error) {
    fail(error);
  } catch (const std::exception& error) {
    fail(Error(ErrorKind::kInternal, error.what()));
  }
  return true;
}

void Group::finish_messages() {
  for (const auto& message : mailbox_.take_finished()) {
    std::exception_ptr error;
    try {
      if (message->ending_.epilogue) message->ending_.epilogue();
    } catch (const std::exception& failure) {
      error = std::current_exception();
      fail(Error(ErrorKind::kInternal, message->describe() + ": " + failure.what()));
    }
    finish_message(*message, std::move(error));
  }
}

void Group::finish_message(Message& message, std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    --messages_;
  }
  complete(message, std::move(error));
}

void Group::finish_messages_failed(const Error& error) {
  finish_messages();
  const auto end = [&](Message& message) {
    finish_message(message, std::make_exception_ptr(with_activity(error, "was in", message)));
  };
  for (const auto& message : mailbox_.abandon()) end(*message);
  while (const auto message = take_posted()) end(*message);
}

Group::Suspicion Group::suspect(const Message& message) const {
  const int partner = message.partner();
  const std::string offer = mailbox_.waiting_offer(partner);
  if (partner == kAnySource) {
    return {"no rank has posted a matching send (tag " + std::to_string(message.tag()) + ")" + offer, -1};
  }
  std::string text = name_of_peer(partner) + " " + message.waits_for();
  const std::string state = state_of_peer(mesh_.peers[partner]);
  if (!state.empty()) text += ", its process is " + state;
  return {text + offer, partner};
}

void Group::check_messages() {
  check_stranded();
  for (const auto& message : held_back()) {
    if (message->deadline().passed()) return fail(timed_out(*message, message->submitted(), not_ready()));
  }
  for (const auto& message : mailbox_.unfinished()) {
    if (failed_.load(std::memory_order_acquire)) return;
    if (message->deadline().passed()) {
      fail(timed_out(*message, message->submitted(), suspect(*message)));
      continue;
    }
    const int partner = message->partner();
    const auto stopped = [&] { return partner != kAnySource && is_stopped(mesh_.peers[partner]); };
    const auto since = std::max(message->last_moved(), message->waited_since());
    if (is_late(*message, since, stopped)) report_late(*message, since, suspect(*message));
  }
}

// Fails the group when a message waits for a peer that has left or is lost.
void Group::check_stranded() {
  const auto now = Deadline::Clock::now();
  std::map<int, Departure> left;
  if (any_peer_left_.load(std::memory_order_relaxed)) {
    const std::lock_guard lock(mutex_);
    left = peers_left_;
  }
  for (const auto& [rank, departure] : left) mailbox_.peer_left(rank, now);
  const Message* const message = mailbox_.stranded(now - kGrace);
  if (!message || failed_.load(std::memory_order_acquire)) return;
  const int partner = message->partner();
  if (partner != kAnySource && left.count(partner) == 0) {
    return fail(with_work(*mailbox_.link_error(partner), *message));
  }
  const std::string who = partner == kAnySource ? "every other rank " + how_it_left({})
                                                : name_of_peer(partner) + " " + how_it_left(left[partner]);
  fail(Error(ErrorKind::kPeerLost, who + ": it will never finish " + message->describe(), partner));
}

}  // namespace ringdp::comm
