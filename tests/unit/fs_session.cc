// SPDX-License-Identifier: MIT
//
// The threads that answer the kernel, with a socket in its place.
#include <linux/fuse.h>
#include <poll.h>
#include <sys/socket.h>

#include "tests/unit/fs_fixture.hh"
#include "tests/unit/session_shim.h"

namespace
{

const uint64_t getattr = 4;	// the unique number of shim_ask

class Session : public ::testing::Test
{
protected:
	Session() : t(ground, true, true)
	{
		int pair[2];
		EXPECT_EQ(t.err, 0);
		EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
		kernel.reset(pair[0]);
		EXPECT_EQ(shim_serve(t.fs, pair[1]), 0);
		EXPECT_NE(next_answer(), 0u);	// INIT's
	}
	~Session() override
	{
		kernel.reset(-1);
		shim_serve_end(t.fs);
	}
	// The number of the request that is answered next; 0: none is in a minute.
	uint64_t next_answer()
	{
		char buf[4096];
		pollfd p = {kernel.get(), POLLIN, 0};
		if (poll(&p, 1, 60000) != 1 ||
		    recv(kernel.get(), buf, sizeof(buf), 0) < (ssize_t)sizeof(fuse_out_header))
			return 0;
		return reinterpret_cast<fuse_out_header *>(buf)->unique;
	}

	Ground ground;
	LiveTree t;
	Fd kernel;
};

// Who has answered for too long finds another thread in its place, which waits for the next request
// with the lock on reading held. Nothing else is asked: an answer that waited for that lock would
// never come, and this minute is for a hang only.
TEST_F(Session, WhoLostTheReadingIsNotHeldUpByTheNextReader)
{
	ASSERT_EQ(shim_ask(kernel.get()), 0);
	EXPECT_EQ(next_answer(), getattr);
}

} // namespace
