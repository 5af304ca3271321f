// SPDX-License-Identifier: MIT
//
// Modes that deny their owner (io/store/lend.c): what was allowed in the mount is done in the store, and the mode
// is put back, whichever step fails or is the last before a kill.
#include <linux/capability.h>
#include <optional>
#include <sys/syscall.h>
#include <unistd.h>

#include "io_fixture.hh"

namespace {

// This process owns the files and has no right to override their modes.
void give_up_override()
{
	__user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	__user_cap_data_struct data[2] = {};
	syscall(SYS_capget, &head, data);
	data[0].effective &= ~(1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH);
	syscall(SYS_capset, &head, data);
}

mode_t mode_of(const std::string &path)
{
	struct stat st;
	return lstat(path.c_str(), &st) ? 0 : st.st_mode & 07777;
}

struct Lend : ::testing::Test {
	void SetUp() override
	{
		give_up_override();
		mkdir((t.path + "/d").c_str(), 0755);
		mkdir((t.path + "/d/e").c_str(), 0755);
		close(open((t.path + "/d/e/f").c_str(), O_CREAT | O_WRONLY, 0600));
	}
	void deny()
	{
		chmod((t.path + "/d/e/f").c_str(), 0);
		chmod((t.path + "/d/e").c_str(), 0555);
	}
	std::string mark(const char *name)
	{
		std::string at = t.path + "/.cairn/h/" + name;
		char text[4096];
		ssize_t n = readlink(at.c_str(), text, sizeof(text));
		return n < 0 ? "" : std::string(text, (size_t)n);
	}
	TempDir t;
};

// That directory and the one above it, open in a store.
struct Denied : Lend {
	void SetUp() override
	{
		Lend::SetUp();
		deny();
		ASSERT_EQ(s.emplace(e, t.path, false, "h").err, 0);
		d = io_open_dir(s->s, io_store_root(s->s), "d");
		dir = io_open_dir(s->s, d, "e");
		ASSERT_GE(dir, 0);
	}
	void TearDown() override
	{
		close(dir);
		close(d);
	}
	Engine e;
	std::optional<Store> s;
	int d = -1, dir = -1;
};

TEST_F(Denied, ChangesAndPutsBack)
{
	char text[8];
	EXPECT_EQ(io_set_xattr(s->s, dir, "f", -1, "user.t", "v", 1, 0), 0);
	EXPECT_EQ(io_get_xattr(s->s, dir, "f", "user.t", text, sizeof(text)), 1);
	EXPECT_EQ(io_link(s->s, dir, "f", dir, "g"), 0);
	EXPECT_EQ(io_rename(s->s, dir, "g", d, "g", 0), 0);
	EXPECT_EQ(io_unlink(s->s, dir, "f"), 0);
	EXPECT_EQ(mode_of(t.path + "/d/g"), 0u);
	EXPECT_EQ(mode_of(t.path + "/d/e"), 0555u);
	EXPECT_EQ(mark("lent0"), "");
}

// A start opens what a killed one had given its mode already.
TEST_F(Lend, AnUnpublishedFile)
{
	Engine e;
	Store s(e, t.path, false, "h");
	ASSERT_EQ(s.err, 0);
	char name[17];
	bool direct;
	io_tmp_name(7, name);
	std::string path = t.path + "/.cairn/h/tmp/" + name;
	for (mode_t mode : {0444, 0200, 0}) {
		int fd = io_tmp_create(s.s, 7, false, &direct);
		ASSERT_GE(fd, 0);
		close(fd);
		chmod(path.c_str(), mode);
		fd = io_tmp_open(s.s, 7, O_RDWR);
		EXPECT_GE(fd, 0) << strerror(-fd);
		EXPECT_EQ(mode_of(path), mode);
		close(fd);
	}
}

// What is not the mode's fault is refused as before, and changes nothing.
TEST_F(Denied, AnotherErrorStays)
{
	EXPECT_EQ(io_unlink(s->s, dir, "none"), -ENOENT);
	EXPECT_EQ(io_rmdir(s->s, dir, "f"), -ENOTDIR);
	EXPECT_EQ(mode_of(t.path + "/d/e"), 0555u);
	EXPECT_EQ(mode_of(t.path + "/d/e/f"), 0u) << "as seen by its owner";
}

// Each operation from the Nth on fails: as after a kill there. The next start has the mode as it was.
TEST_F(Lend, PutBackByTheNextStart)
{
	unsigned marked = 0;
	for (int n = 1; n < 12; n++) {
		deny();
		{
			Engine e("posix", ("1:@" + std::to_string(n) + "+:eio").c_str());
			Store s(e, t.path, false, "h");
			ASSERT_EQ(s.err, 0);
			int root = io_store_root(s.s), d = io_open_dir(s.s, root, "d");
			int dir = io_open_dir(s.s, d, "e");
			io_set_xattr(s.s, dir, "f", -1, "user.t", "v", 1, 0);
			io_link(s.s, dir, "f", dir, "g");
			close(dir);
			close(d);
		}
		marked += mark("lent0") != "";
		Engine e;
		Store s(e, t.path, false, "h");
		ASSERT_EQ(s.err, 0);
		EXPECT_EQ(mode_of(t.path + "/d/e"), 0555u) << n;
		EXPECT_EQ(mark("lent0") + mark("lent1") + mark("lent2"), "") << n;
		chmod((t.path + "/d/e").c_str(), 0755);
		EXPECT_EQ(mode_of(t.path + "/d/e/f"), 0u) << n;
		unlink((t.path + "/d/e/g").c_str());
	}
	EXPECT_GE(marked, 2u);
}

// Another object has the name, another mode was set, or the directories above deny the way there.
TEST_F(Lend, OnlyWhatIsStillLentIsPutBack)
{
	{
		Engine e;
		Store s(e, t.path, false, "h");
		ASSERT_EQ(s.err, 0);
	}
	struct stat st;
	ASSERT_EQ(stat((t.path + "/d/e").c_str(), &st), 0);
	auto start = [&](const std::string &text, mode_t now) {
		chmod((t.path + "/d").c_str(), 0755);
		chmod((t.path + "/d/e").c_str(), now);
		EXPECT_EQ(symlink(text.c_str(), (t.path + "/.cairn/h/lent0").c_str()), 0);
		chmod((t.path + "/d").c_str(), 0);
		Engine e;
		Store s(e, t.path, false, "h");
		EXPECT_EQ(s.err, 0);
		EXPECT_EQ(mode_of(t.path + "/d"), 0u);
		chmod((t.path + "/d").c_str(), 0755);
		EXPECT_EQ(mark("lent0"), "");
		return mode_of(t.path + "/d/e");
	};
	std::string ino = std::to_string(st.st_ino), other = std::to_string(st.st_ino + 1);
	EXPECT_EQ(start("555 " + ino + " d/e", 0755), 0555u);
	EXPECT_EQ(start("555 " + other + " d/e", 0755), 0755u);
	EXPECT_EQ(start("555 " + ino + " d/e", 0700), 0700u);
	EXPECT_EQ(start("555 " + ino + " d/gone", 0755), 0755u);
}

} // namespace
