// SPDX-License-Identifier: MIT
//
// An error of the store is no answer. Where a call fails with EIO, EMFILE, ..., what is known of a
// name, a directory or a version stays as it is, and the caller is told the error.
#include <sys/resource.h>

#include "tests/unit/fs_fixture.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;
const int no_answer[] = {EIO, EMFILE, ENFILE, ENOMEM, ESTALE, EACCES, ENOTCONN, EINTR};

struct Failing {
	Failing(const char *name, int err) { shim_fail(name, err); }
	~Failing() { shim_fail(nullptr, 0); }
};

// No descriptor can be had while it lives.
struct NoDescriptors {
	NoDescriptors()
	{
		getrlimit(RLIMIT_NOFILE, &was);
		rlimit none = {0, was.rlim_max};
		setrlimit(RLIMIT_NOFILE, &none);
	}
	~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &was); }
	rlimit was;
};

void put(struct fs *fs, uint64_t dir, const char *name, const char *bytes)
{
	uint64_t id, fh;
	ASSERT_EQ(shim_create(fs, dir, name, &id, &fh), 0);
	ASSERT_EQ(shim_write(fs, fh, bytes, strlen(bytes), 0), 0);
	ASSERT_EQ(shim_close(fs, fh), 0);
}

// run/old and run/other are in the store. The next worker publishes nothing.
std::unique_ptr<LiveTree> with_run(Ground &ground, uint64_t *run)
{
	auto t = std::make_unique<LiveTree>(ground, true);
	EXPECT_EQ(t->err, 0);
	EXPECT_EQ(shim_mkdir(t->fs, root, "run", run), 0);
	put(t->fs, *run, "old", "bytes");
	put(t->fs, *run, "other", "bytes");
	EXPECT_EQ(staging_drain(t->s(), 60000), 0);
	t = nullptr;
	t = std::make_unique<LiveTree>(ground);
	EXPECT_EQ(t->err, 0);
	return t;
}

// Accepted files below a directory, removed names in it: not even the directory's own name goes.
TEST(StoreErrors, OfStatDropNoName)
{
	Ground ground;
	uint64_t run, id, fh;
	auto t = with_run(ground, &run);
	put(t->fs, run, "shard", "accepted");
	ASSERT_EQ(shim_rename(t->fs, run, "old", run, "new"), 0);
	for (int err : no_answer) {
		SCOPED_TRACE(err);
		{
			Failing f("run", err);
			EXPECT_EQ(shim_lookup(t->fs, root, "run", &id), -err);
			EXPECT_EQ(shim_mkdir(t->fs, root, "run", &id), -err);
			EXPECT_EQ(shim_rename(t->fs, root, "run", root, "away"), -err);
		}
		ASSERT_EQ(shim_lookup(t->fs, root, "run", &id), 0);
		EXPECT_EQ(id, run);
		EXPECT_EQ(shim_lookup(t->fs, id, "shard", &id), 0);
		EXPECT_EQ(shim_lookup(t->fs, run, "new", &id), 0);
		EXPECT_EQ(shim_lookup(t->fs, run, "old", &id), -ENOENT);
		EXPECT_EQ(shim_create(t->fs, run, "shard", &id, &fh), -EEXIST);
	}
	ASSERT_EQ(shim_start(t->fs), 0);
	ASSERT_EQ(staging_drain(t->s(), 60000), 0);
	EXPECT_EQ(show(tree_of(ground.store())), "run/=0 run/new=5,98 run/other=5,98 run/shard=8,97 ");
}

// That a name is not there is an answer: the store was changed beside the mount.
TEST(StoreErrors, AbsenceIsAnAnswer)
{
	Ground ground;
	uint64_t run, id;
	auto t = with_run(ground, &run);
	ASSERT_EQ(shim_lookup(t->fs, run, "old", &id), 0);
	std::filesystem::remove(ground.store() + "/run/old");
	EXPECT_EQ(shim_lookup(t->fs, run, "old", &id), -ENOENT);
	std::filesystem::remove_all(ground.store() + "/run");
	EXPECT_EQ(shim_lookup(t->fs, root, "run", &id), -ENOENT);
}

TEST(StoreErrors, NoDescriptorDropsNoName)
{
	Ground ground;
	uint64_t run, before, id;
	auto t = with_run(ground, &run);
	{
		NoDescriptors none;
		EXPECT_EQ(shim_lookup(t->fs, run, "old", &id), -EMFILE);
	}
	ASSERT_EQ(shim_lookup(t->fs, run, "old", &before), 0);
	t = nullptr; // the next has no directory open
	t = std::make_unique<LiveTree>(ground);
	ASSERT_EQ(t->err, 0);
	{
		NoDescriptors none;
		EXPECT_EQ(shim_lookup(t->fs, run, "old", &id), -EMFILE);
	}
	ASSERT_EQ(shim_lookup(t->fs, run, "old", &id), 0);
	EXPECT_EQ(id, before);
}

// A directory that cannot be listed is not empty.
TEST(StoreErrors, RmdirOfWhatCannotBeListed)
{
	Ground ground;
	uint64_t run, id;
	auto t = with_run(ground, &run);
	{
		NoDescriptors none;
		EXPECT_EQ(shim_rmdir(t->fs, root, "run"), -EMFILE);
	}
	ASSERT_EQ(shim_lookup(t->fs, run, "old", &id), 0); // its descriptor is there now
	{
		NoDescriptors none;
		EXPECT_EQ(shim_rmdir(t->fs, root, "run"), -EMFILE);
	}
	std::filesystem::remove(ground.store() + "/run/old");
	Failing f("other", EIO);	// it is listed: nobody asks for more
	EXPECT_EQ(shim_rmdir(t->fs, root, "run"), -ENOTEMPTY);
}

// Whether a shard belongs to a committed checkpoint must be known before it is replaced.
TEST(StoreErrors, ACloseThatCannotAskForTheCommit)
{
	Ground ground;
	uint64_t fh;
	LiveTree t(ground, true);
	ASSERT_EQ(t.err, 0);
	put(t.fs, root, "__0_0.distcp", "shard");
	put(t.fs, root, ".metadata", "commit");
	ASSERT_EQ(staging_drain(t.s(), 60000), 0);
	ASSERT_EQ(shim_open_file(t.fs, root, "__0_0.distcp", O_WRONLY | O_TRUNC, &fh), 0);
	ASSERT_EQ(shim_write(t.fs, fh, "new", 3, 0), 0);
	Failing f(".metadata", EIO);
	EXPECT_EQ(shim_close(t.fs, fh), -EIO);
}

// A worker that cannot open what is staged does not start; it gives no version up.
TEST(StoreErrors, ReplayWithoutADescriptor)
{
	Ground ground;
	uint64_t id, fh;
	char staged[17] = "";
	{
		LiveTree t(ground);
		ASSERT_EQ(t.err, 0);
		ASSERT_EQ(shim_create(t.fs, root, "f", &id, &fh), 0);
		ASSERT_EQ(shim_write(t.fs, fh, "bytes", 5, 0), 0);
		snprintf(staged, sizeof(staged), "%016llx", (unsigned long long)shim_staged(t.fs, id));
		ASSERT_EQ(shim_close(t.fs, fh), 0);
	}
	for (bool first : {false, true}) {
		Failing f(staged, EMFILE);
		LiveTree t(ground, false, first);
		EXPECT_EQ(t.err, -EMFILE);
	}
	LiveTree t(ground, true);
	ASSERT_EQ(t.err, 0);
	ASSERT_EQ(staging_drain(t.s(), 60000), 0);
	EXPECT_EQ(show(tree_of(ground.store())), "f=5,98 ");
	for (auto &text : t.notes)
		ADD_FAILURE() << text;
}

} // namespace
