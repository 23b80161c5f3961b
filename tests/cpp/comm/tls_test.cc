// Groups whose TCP is under TLS: that they meet, and how they are told when they cannot.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <thread>

#include "comm/meshes.h"
#include "comm/tcp_exchange.h"
#include "transport/tcp/certificates.h"
#include "transport/tcp/tcp_socket.h"

namespace ringdp::comm {
namespace {

using transport::Certificates;

class TlsGroups : public testing::Test {
 protected:
  void SetUp() override { RINGDP_NEEDS_CERTIFICATES(); }

  static Settings over_tls(const std::string& name = "member", const std::string& authority = "ca") {
    return Certificates::get().put_into(with(TransportChoice::kTcp), name, authority);
  }

  // What each rank is told where one of them, `odd`, has other settings.
  static std::vector<std::optional<Error>> errors_with(const Settings& others, int odd, const Settings& of_odd) {
    MemoryStore store;
    const std::vector<transport::Doorbell> bells(3);
    return errors_of_ranks(3, [&](int rank) {
      connect(store, rank, 3, rank == odd ? of_odd : others, bells[static_cast<size_t>(rank)], Deadline::after(kGuard));
    });
  }

  static constexpr auto kGuard = std::chrono::seconds(60);  // against hanging
};

// Strangers at the door of every rank before its peers come: with a hello in plain, with garbage, and one that is silent.
class BusyStore : public MemoryStore {
 public:
  void set(const std::string& key, const std::string& value) override {
    if (key.rfind("1/address/", 0) == 0) {
      const size_t space = value.find(' ');
      const auto to = transport::SocketAddress::parse(value.substr(0, space), std::stoi(value.substr(space + 1)));
      for (const std::string said : {"ringdp\r\n in plain", "\x16\x03\x01\x02 garbage behind a header", ""}) {
        strangers.push_back(transport::connect_tcp(*to, {Deadline::never(), nullptr}));
        ::send(strangers.back().get(), said.data(), said.size(), MSG_NOSIGNAL);
      }
    }
    MemoryStore::set(key, value);
  }
  std::vector<UniqueFd> strangers;
};

TEST_F(TlsGroups, RanksMeetUnderTlsWhoeverElseIsAtTheDoor) {
  BusyStore store;
  Settings settings = over_tls();
  settings.tcp_streams = 2;
  Meshes group(store, 2, settings);
  EXPECT_EQ(store.strangers.size(), 6u);
  for (const size_t rank : {0, 1}) {
    EXPECT_NE(group.meshes[rank].peers[1 - rank].why.find("TLS 1.3"), std::string::npos);
  }
  exchange_on_all_links(group.meshes);
}

TEST_F(TlsGroups, ARankOfAnotherAuthorityIsRefusedByBothSides) {
  for (const int odd : {0, 2}) {
    const auto errors = errors_with(over_tls(), odd, over_tls("stranger", "other"));
    for (size_t rank = 0; rank < errors.size(); ++rank) {
      ASSERT_TRUE(errors[rank]) << "rank " << rank << " was content";
      expect_message(*errors[rank], {"TLS with rank ", "at 127.0.0.1:", "certificate", "RINGDP_TLS_CA="});
    }
  }
}

TEST_F(TlsGroups, ARankWhoseFilesWillNotDoTellsAll) {
  Settings half = over_tls();
  half.tls_key = "";
  for (const auto& [settings, said] : {std::pair{over_tls("expired"), "certificate has expired"},
                                       std::pair{half, "RINGDP_TLS_KEY is not set"}}) {
    const auto errors = errors_with(over_tls(), 1, settings);
    for (size_t rank = 0; rank < errors.size(); ++rank) {
      ASSERT_TRUE(errors[rank]) << "rank " << rank << " was content";
      EXPECT_EQ(errors[rank]->kind(), rank == 1 ? ErrorKind::kInvalidArgument : ErrorKind::kAborted);
      expect_message(*errors[rank], {said});
    }
  }
}

TEST_F(TlsGroups, ARankInPlainIsRefused) {
  for (const auto& error : errors_with(over_tls(), 1, with(TransportChoice::kTcp))) {
    ASSERT_TRUE(error);
    expect_message(*error, {"settings differ", "tls=on", "tls=off", "rank 1"});
  }
}

// What rank 1 says of a rank 0 whose port answers with `said`, if at all.
Error error_of_guest(const std::string& said, const Settings& settings) {
  MemoryStore store;
  RollCall zero(store, 0, 2, Deadline::never()), one(store, 1, 2, soon());
  const auto tls = std::make_shared<const transport::TlsContext>(settings.tls_cert, settings.tls_key, settings.tls_ca);
  Session::begin(zero, settings);
  Session guest = Session::begin(one, settings);
  guest.tls = tls;
  const UniqueFd listener = transport::listen_on(*transport::SocketAddress::parse("127.0.0.1", 0));
  const int port = transport::SocketAddress::bound_to(listener.get()).port();
  zero.publish("address", "127.0.0.1 " + std::to_string(port) + " 1");
  std::vector<UniqueFd> accepted;
  std::thread host([&] {
    pollfd entry{listener.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&entry, 1, 60'000), 1);
    accepted.emplace_back(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ::send(accepted.back().get(), said.data(), said.size(), MSG_NOSIGNAL);
  });
  std::optional<Error> error;
  try {
    exchange_tcp(guest, {0}, true);
  } catch (const Error& thrown) {
    error = thrown;
  }
  host.join();
  return error ? *error : Error(ErrorKind::kInternal, "nothing was thrown");
}

TEST_F(TlsGroups, APeerThatAnswersInPlainIsNamed) {
  const Error error = error_of_guest("ringdp\r\n", over_tls());
  EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
  EXPECT_EQ(error.culprit(), 0);
  expect_message(error, {"rank 1: TLS with rank 0 at 127.0.0.1:", "it does not speak TLS"});
}

TEST_F(TlsGroups, APeerThatSaysNothingIsNamedAtTheDeadline) {
  const Error error = error_of_guest("", over_tls());
  EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  EXPECT_EQ(error.culprit(), 0);
}

}  // namespace
}  // namespace ringdp::comm
