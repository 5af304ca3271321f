// SPDX-License-Identifier: MIT
//
// An error of the store is no answer. Where a call fails with EIO, EMFILE, ..., what is known of a
// name, a directory or a version stays as it is, and the caller is told the error.

#include "tests/unit/fs_client.hh"
#include "tests/unit/store_faults.h"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;
const int no_answer[] = {EIO, EMFILE, ENFILE, ENOMEM, ESTALE, EACCES, ENOTCONN, EINTR};

struct Failing {
	Failing(const char *name, int err) { shim_fail(name, err); }
	~Failing() { shim_fail(nullptr, 0); }
};

// 0 is taken; poll(2) wants as many as it is to look at.
const rlim_t NO_DESCRIPTOR = 1;

// run/old and run/other are in the store. The next worker publishes nothing.
std::unique_ptr<Worker> with_run(Ground &ground, uint64_t *run)
{
	auto w = std::make_unique<Worker>(ground, true);
	EXPECT_EQ(w->t.err, 0);
	EXPECT_EQ(w->k.mkdir(root, "run"), 0);
	*run = w->k.id;
	EXPECT_NE(w->k.put(*run, "old", "bytes"), 0u);
	EXPECT_NE(w->k.put(*run, "other", "bytes"), 0u);
	EXPECT_EQ(w->drain(), 0);
	w = nullptr;
	w = std::make_unique<Worker>(ground);
	EXPECT_EQ(w->t.err, 0);
	return w;
}

// Accepted files below a directory, removed names in it: not even the directory's own name goes.
TEST(StoreErrors, OfStatDropNoName)
{
	Ground ground;
	uint64_t run;
	File f;
	auto w = with_run(ground, &run);
	Client &k = w->k;
	ASSERT_NE(k.put(run, "shard", "accepted"), 0u);
	ASSERT_EQ(k.rename(run, "old", run, "new"), 0);
	for (int err : no_answer) {
		SCOPED_TRACE(err);
		{
			Failing fails("run", err);
			EXPECT_EQ(k.lookup(root, "run"), -err);
			EXPECT_EQ(k.mkdir(root, "run"), -err);
			EXPECT_EQ(k.rename(root, "run", root, "away"), -err);
		}
		ASSERT_EQ(k.lookup(root, "run"), 0);
		EXPECT_EQ(k.id, run);
		EXPECT_EQ(k.lookup(run, "shard"), 0);
		EXPECT_EQ(k.lookup(run, "new"), 0);
		EXPECT_EQ(k.lookup(run, "old"), -ENOENT);
		EXPECT_EQ(k.create(run, "shard", &f, O_WRONLY | O_CREAT | O_EXCL), -EEXIST);
	}
	ASSERT_EQ(shim_start(w->fs), 0);
	ASSERT_EQ(w->drain(), 0);
	EXPECT_EQ(show(tree_of(ground.store())), "run/=0 run/new=5,98 run/other=5,98 run/shard=8,97 ");
}

// That a name is not there is an answer: the store was changed beside the mount.
TEST(StoreErrors, AbsenceIsAnAnswer)
{
	Ground ground;
	uint64_t run;
	auto w = with_run(ground, &run);
	ASSERT_EQ(w->k.lookup(run, "old"), 0);
	std::filesystem::remove(ground.store() + "/run/old");
	EXPECT_EQ(w->k.lookup(run, "old"), -ENOENT);
	std::filesystem::remove_all(ground.store() + "/run");
	EXPECT_EQ(w->k.lookup(root, "run"), -ENOENT);
}

TEST(StoreErrors, NoDescriptorDropsNoName)
{
	Ground ground;
	uint64_t run;
	auto w = with_run(ground, &run);
	{
		Descriptors none(NO_DESCRIPTOR);
		EXPECT_EQ(w->k.lookup(run, "old"), -EMFILE);
	}
	ASSERT_EQ(w->k.lookup(run, "old"), 0);
	uint64_t before = w->k.id;
	w = nullptr; // the next has no directory open
	w = std::make_unique<Worker>(ground);
	ASSERT_EQ(w->t.err, 0);
	{
		Descriptors none(NO_DESCRIPTOR);
		EXPECT_EQ(w->k.lookup(run, "old"), -EMFILE);
	}
	ASSERT_EQ(w->k.lookup(run, "old"), 0);
	EXPECT_EQ(w->k.id, before);
}

// A directory that cannot be listed is not empty.
TEST(StoreErrors, RmdirOfWhatCannotBeListed)
{
	Ground ground;
	uint64_t run;
	auto w = with_run(ground, &run);
	{
		Descriptors none(NO_DESCRIPTOR);
		EXPECT_EQ(w->k.rmdir(root, "run"), -EMFILE);
	}
	ASSERT_EQ(w->k.lookup(run, "old"), 0); // its descriptor is there now
	{
		Descriptors none(NO_DESCRIPTOR);
		EXPECT_EQ(w->k.rmdir(root, "run"), -EMFILE);
	}
	std::filesystem::remove(ground.store() + "/run/old");
	Failing f("other", EIO);	// it is listed: nobody asks for more
	EXPECT_EQ(w->k.rmdir(root, "run"), -ENOTEMPTY);
}

// Whether a shard belongs to a committed checkpoint must be known before it is replaced.
TEST(StoreErrors, ACloseThatCannotAskForTheCommit)
{
	Ground ground;
	File f;
	Worker w(ground, true);
	ASSERT_EQ(w.t.err, 0);
	ASSERT_NE(w.k.put(root, "__0_0.distcp", "shard"), 0u);
	ASSERT_NE(w.k.put(root, ".metadata", "commit"), 0u);
	ASSERT_EQ(w.drain(), 0);
	ASSERT_EQ(w.k.open_name(root, "__0_0.distcp", O_WRONLY | O_TRUNC, &f), 0);
	ASSERT_EQ(w.k.write(f, "new"), 0);
	Failing fails(".metadata", EIO);
	EXPECT_EQ(w.k.close(f), -EIO);
}

// A worker that cannot open what is staged does not start; it gives no version up.
TEST(StoreErrors, ReplayWithoutADescriptor)
{
	Ground ground;
	File file;
	char staged[17] = "";
	{
		Worker w(ground);
		ASSERT_EQ(w.t.err, 0);
		ASSERT_EQ(w.k.create(root, "f", &file, O_WRONLY | O_CREAT | O_EXCL), 0);
		ASSERT_EQ(w.k.write(file, "bytes"), 0);
		snprintf(staged, sizeof(staged), "%016llx", (unsigned long long)shim_staged(w.fs, file.id));
		ASSERT_EQ(w.k.close(file), 0);
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
