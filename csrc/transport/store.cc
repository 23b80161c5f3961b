#include "transport/store.h"

#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace ringdp::transport {
namespace {

// Time after the deadline for a rank to publish its failure.
constexpr std::chrono::seconds kLastWords{1};
constexpr std::chrono::seconds kReportEvery{10};
constexpr std::chrono::milliseconds kInterruptsEvery{200};

std::string unanswered(const std::string& key, Deadline::Clock::time_point since) {
  return "the rendezvous store has not answered for " + std::to_string(std::lround(seconds_since(since))) +
         " s (key '" + key + "'): its process is stopped, or its host is unreachable";
}

}  // namespace

BoundedStore::BoundedStore(std::shared_ptr<Store> store, Deadline deadline, std::function<void()> interrupt)
    : store_(std::move(store)), deadline_(deadline), interrupt_(std::move(interrupt)) {}

void BoundedStore::look_for_interrupts() {
  if (!interrupt_) return;
  const auto interrupt = std::exchange(interrupt_, {});  // after it has thrown, the store still serves last words
  interrupt();
  interrupt_ = interrupt;
}

template <class Result>
Result BoundedStore::ask(const std::string& key, std::function<Result(Store&)> call) {
  look_for_interrupts();
  const auto start = Deadline::Clock::now();
  auto report_at = Deadline::after(kReportEvery);
  const Deadline limit = deadline_.passed() ? Deadline::after(kLastWords) : deadline_;
  const auto result = std::make_shared<Result>();
  bool is_back = false;
  if (helper_.begin([store = store_, call = std::move(call), result] { *result = call(*store); })) {
    while (!(is_back = helper_.wait(earlier(limit, Deadline::after(kInterruptsEvery)))) && !limit.passed()) {
      look_for_interrupts();
      if (!report_at.passed()) continue;
      log_line(LogLevel::kWarning, "", unanswered(key, start));
      report_at = Deadline::after(kReportEvery);
    }
  }
  if (is_back) return std::move(*result);
  throw Error(ErrorKind::kTimeout, unanswered(key, start) + ". Look at the process that hosts it, usually rank 0");
}

void BoundedStore::set(const std::string& key, const std::string& value) {
  ask<bool>(key, [=](Store& store) {
    store.set(key, value);
    return true;
  });
}

int64_t BoundedStore::add(const std::string& key, int64_t amount) {
  return ask<int64_t>(key, [=](Store& store) { return store.add(key, amount); });
}

bool BoundedStore::has(const std::vector<std::string>& keys) {
  return ask<bool>(keys.front(), [=](Store& store) { return store.has(keys); });
}

std::vector<std::string> BoundedStore::get(const std::vector<std::string>& keys) {
  return ask<std::vector<std::string>>(keys.front(), [=](Store& store) { return store.get(keys); });
}

}  // namespace ringdp::transport
