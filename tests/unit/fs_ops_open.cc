// SPDX-License-Identifier: MIT
//
// The same of open and create, and of writers that come while readers have a version.

#include <thread>

#include "tests/unit/fs_mounted.hh"

namespace
{

// ---- open, create ----

class Opens : public Mounted
{
};

TEST_F(Opens, CreateMakesAFileWithTheModeAsked)
{
	File f;
	ASSERT_EQ(k.create(dir, "f", &f, O_WRONLY | O_CREAT, 04711), 0);
	EXPECT_EQ(k.attr.mode, (uint32_t)S_IFREG | 04711);
	EXPECT_EQ(k.attr.size, 0u);
	EXPECT_EQ(k.attr.nlink, 1u);
	EXPECT_EQ(attr_of("f").mode, (uint32_t)S_IFREG | 04711);
	EXPECT_EQ(k.id, f.id);
	ASSERT_EQ(k.close(f), 0);
	drain();
	EXPECT_EQ(stat_stored("f").st_mode, (mode_t)S_IFREG | 04711);
}

TEST_F(Opens, CreateExclusivelyOfANameThatIsThere)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	File f;
	EXPECT_EQ(k.create(dir, "f", &f, O_WRONLY | O_CREAT | O_EXCL), -EEXIST);
	EXPECT_EQ(k.get(dir, "f"), "bytes");
}

TEST_F(Opens, CreateOpensTheFileThatIsThere)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	uint64_t id = k.id;
	File f;
	ASSERT_EQ(k.create(dir, "f", &f, O_RDWR | O_CREAT), 0);
	EXPECT_EQ(f.id, id);
	EXPECT_EQ(k.attr.size, 5u);
	EXPECT_EQ(k.read_all(f), "bytes");
	ASSERT_EQ(k.write(f, "B"), 0);
	ASSERT_EQ(k.close(f), 0);
	EXPECT_EQ(k.get(dir, "f"), "Bytes");
}

TEST_F(Opens, CreateWithTruncEmptiesTheFileThatIsThere)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	File f;
	ASSERT_EQ(k.create(dir, "f", &f, O_WRONLY | O_CREAT | O_TRUNC), 0);
	EXPECT_EQ(k.attr.size, 0u);
	ASSERT_EQ(k.close(f), 0);
	drain();
	EXPECT_EQ(read_file(stored("f")), "");
}

TEST_F(Opens, CreateWhereSomethingElseIsThere)
{
	ASSERT_EQ(k.mkdir(dir, "d"), 0);
	ASSERT_EQ(k.symlink(dir, "l", "d"), 0);
	File f;
	EXPECT_EQ(k.create(dir, "d", &f, O_WRONLY | O_CREAT), -EISDIR);
	EXPECT_EQ(k.create(dir, "l", &f, O_WRONLY | O_CREAT), -EISDIR);
}

TEST_F(Opens, OpenOfADirectory)
{
	File f;
	EXPECT_EQ(k.open(dir, O_RDONLY, &f), -EISDIR);
	EXPECT_EQ(k.open(dir, O_WRONLY, &f), -EISDIR);
}

TEST_F(Opens, OpenOfAFileThatNobodyKnows)
{
	File f;
	EXPECT_EQ(k.open(unknown, O_RDONLY, &f), -ESTALE);
}

TEST_F(Opens, OpenReadsWhatTheStoreHas)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	drain();
	shim_evict(t->fs);
	File f;
	ASSERT_EQ(k.open_name(dir, "f", O_RDONLY, &f), 0);
	EXPECT_EQ(k.read_all(f), "bytes");
	EXPECT_EQ(k.close(f), 0);
}

TEST_F(Opens, OpenWithTruncEmptiesAFile)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	drain();
	File f;
	ASSERT_EQ(k.open_name(dir, "f", O_WRONLY | O_TRUNC, &f), 0);
	EXPECT_EQ(attr_of(f.id).size, 0u);
	drain();
	EXPECT_EQ(read_file(stored("f")), "bytes");	// a version that nobody closed
	ASSERT_EQ(k.close(f), 0);
	drain();
	EXPECT_EQ(read_file(stored("f")), "");
}

TEST_F(Opens, OpenForReadingWithTruncIsAVersion)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	File f;
	ASSERT_EQ(k.open_name(dir, "f", O_RDONLY | O_TRUNC, &f), 0);
	EXPECT_EQ(k.read_all(f), "");
	drain();
	EXPECT_EQ(read_file(stored("f")), "");
	EXPECT_EQ(k.close(f), 0);
}

TEST_F(Opens, OpenForWritingThatChangesNothingIsNoVersion)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	drain();
	fuse_attr was = attr_of("f");
	uint64_t seal = seal_of(k.id);
	File f;
	ASSERT_EQ(k.open_name(dir, "f", O_WRONLY, &f), 0);
	ASSERT_EQ(k.close(f), 0);
	EXPECT_EQ(seal_of(f.id), seal);
	EXPECT_EQ(mtime(attr_of("f")), mtime(was));
	EXPECT_EQ(k.get(dir, "f"), "bytes");
}

TEST_F(Opens, WhatIsAppendedToAFileOfTheStoreFollowsItsBytes)
{
	ASSERT_NE(k.put(dir, "f", "by"), 0u);
	drain();
	shim_evict(t->fs);
	File f;
	ASSERT_EQ(k.open_name(dir, "f", O_WRONLY | O_APPEND, &f), 0);
	ASSERT_EQ(k.write(f, "tes", 2), 0);
	EXPECT_EQ(read_file(stored("f")), "by");
	ASSERT_EQ(k.close(f), 0);
	EXPECT_EQ(k.get(dir, "f"), "bytes");
	drain();
	EXPECT_EQ(read_file(stored("f")), "bytes");
}

TEST_F(Opens, AWriterThroughTheDaemonIsNotCachedUnlessItMayMap)
{
	File f, r;
	ASSERT_EQ(k.create(dir, "mapped", &f, O_RDWR | O_CREAT | O_EXCL), 0);
	EXPECT_FALSE(k.opened.open_flags & FOPEN_DIRECT_IO);
	ASSERT_EQ(k.close(f), 0);
	ASSERT_EQ(k.create(dir, "f", &f, O_WRONLY | O_CREAT | O_EXCL), 0);
	EXPECT_TRUE(k.opened.open_flags & FOPEN_DIRECT_IO);
	ASSERT_EQ(k.close(f), 0);
	drain();
	shim_evict(t->fs);
	ASSERT_EQ(k.open_name(dir, "f", O_RDONLY, &r), 0);
	EXPECT_FALSE(k.opened.open_flags & FOPEN_DIRECT_IO);
	EXPECT_TRUE(k.opened.open_flags & FOPEN_KEEP_CACHE);
	ASSERT_EQ(k.close(r), 0);
}

// Of 120 descriptors 40 and an eighth are the worker's: 32 files with two each, of which one user has five eighths.
TEST_F(Opens, OneUserMayNotTakeAllDescriptors)
{
	Descriptors few(120);
	std::vector<File> open;
	File f;
	as(4321);
	while (open.size() < 100 && !k.create(dir, "f" + std::to_string(open.size()), &f))
		open.push_back(f);
	EXPECT_EQ(k.err, -EMFILE);
	EXPECT_EQ(open.size(), 20u);
	EXPECT_EQ(k.lookup(dir, "f20"), -ENOENT);
	EXPECT_EQ(k.open(open[0].id, O_RDONLY, &f), -EMFILE);
	as_root();
	EXPECT_EQ(k.open(open[0].id, O_RDONLY, &f), 0);
	k.close(f);
	as(4321);
	EXPECT_EQ(k.close(open[0]), 0);
	ASSERT_EQ(k.open(open[0].id, O_RDONLY, &open[0]), 0);
	for (auto &o : open)
		EXPECT_EQ(k.close(o), 0);
}

// ---- forks: a writer comes while readers have a version ----

class Forks : public Mounted
{
protected:
	void SetUp() override
	{
		Mounted::SetUp();
		ASSERT_NE(k.put(dir, "f", "old"), 0u);
		old = k.id;
		ino = k.ino;
		drain();
		shim_evict(t->fs);
		ASSERT_EQ(k.open_name(dir, "f", O_RDONLY, &r), 0);
		ASSERT_EQ(r.id, old);
	}
	void TearDown() override
	{
		k.close(r);
		Mounted::TearDown();
	}
	File r;
	uint64_t old = 0, ino = 0;
};

TEST_F(Forks, AWriterIsSentToLookAgain)
{
	File w;
	EXPECT_EQ(k.open(old, O_WRONLY | O_TRUNC, &w), -ESTALE);
	ASSERT_EQ(k.lookup(dir, "f"), 0);
	EXPECT_NE(k.id, old);
	EXPECT_EQ(k.ino, ino);
	EXPECT_EQ(k.open(k.id, O_WRONLY | O_TRUNC, &w), 0);
	EXPECT_EQ(k.open(old, O_RDONLY, &w), -ESTALE);	// by a name that the kernel remembers
	k.close(w);
}

TEST_F(Forks, ReadersKeepTheirVersionAndOthersSeeTheNewOne)
{
	File w;
	ASSERT_EQ(k.open_name(dir, "f", O_WRONLY | O_TRUNC, &w), 0);
	ASSERT_EQ(k.write(w, "newer"), 0);
	EXPECT_EQ(k.read_all(r), "old");
	EXPECT_EQ(k.get(dir, "f"), "newer");
	ASSERT_EQ(k.close(w), 0);
	drain();
	shim_evict(t->fs);
	EXPECT_EQ(read_file(stored("f")), "newer");
	EXPECT_EQ(k.read_all(r), "old");
	EXPECT_EQ(attr_of("f").ino, ino);
}

TEST_F(Forks, ADescriptorShowsTheSizeOfItsVersionAndTheModeOfTheFile)
{
	ASSERT_EQ(k.rewrite(dir, "f", "newer"), 0);
	ASSERT_EQ(k.lookup(dir, "f"), 0);
	uint64_t now = k.id;
	ASSERT_EQ(k.chmod(now, 0600), 0);
	EXPECT_EQ(attr_of(old).size, 3u);
	EXPECT_EQ(k.attr.mode, (uint32_t)S_IFREG | 0600);
	EXPECT_EQ(attr_of(now).size, 5u);
	ASSERT_EQ(k.chmod(old, 0640), 0);	// fchmod of the reader's
	EXPECT_EQ(attr_of(now).mode, (uint32_t)S_IFREG | 0640);
}

TEST_F(Forks, TruncationIsAWriterToo)
{
	EXPECT_EQ(k.truncate(old, 1), -ESTALE);
	ASSERT_EQ(k.lookup(dir, "f"), 0);
	uint64_t now = k.id;
	ASSERT_NE(now, old);
	EXPECT_EQ(k.truncate(now, 1), 0);
	EXPECT_EQ(k.read_all(r), "old");
	EXPECT_EQ(k.get(dir, "f"), "o");
}

TEST_F(Forks, AllNamesOfTheFileLeadToTheNewVersion)
{
	ASSERT_EQ(k.link(old, dir, "g"), 0);
	k.told.clear();
	ASSERT_EQ(k.rewrite(dir, "f", "newer"), 0);
	EXPECT_EQ(k.get(dir, "g"), "newer");
	EXPECT_EQ(k.attr.nlink, 2u);
	EXPECT_EQ(k.told.size(), 2u);	// the kernel is to forget both
	drain();
	EXPECT_EQ(stat_stored("f").st_ino, stat_stored("g").st_ino);
	EXPECT_EQ(read_file(stored("g")), "newer");
}

TEST_F(Forks, TheReadersVersionCanBeSoughtIn)
{
	ASSERT_EQ(k.rewrite(dir, "f", "newer"), 0);
	drain();
	EXPECT_EQ(k.lseek(r, 0, SEEK_HOLE), 3);
}

TEST_F(Forks, CreateOpensTheNewVersion)
{
	File w;
	ASSERT_EQ(k.create(dir, "f", &w, O_WRONLY | O_CREAT | O_TRUNC), 0);
	EXPECT_NE(w.id, old);
	EXPECT_EQ(k.ino, ino);
	EXPECT_EQ(k.read_all(r), "old");
	ASSERT_EQ(k.close(w), 0);
}

TEST_F(Forks, WritersFirstAndReadersThenShareOneVersion)
{
	File w, r2;
	ASSERT_EQ(k.open_name(dir, "f", O_WRONLY | O_TRUNC, &w), 0);
	ASSERT_EQ(k.open_name(dir, "f", O_RDONLY, &r2), 0);
	ASSERT_EQ(k.write(w, "seen at once"), 0);
	EXPECT_EQ(k.read_all(r2), "seen at once");
	ASSERT_EQ(k.close(w), 0);
	ASSERT_EQ(k.close(r2), 0);
}

// ---- an empty file: locks are the inode's, and lock files are empty ----

// However it is opened for writing, and wherever its last version is, the writer gets the readers' node; and they
// read what it writes, in staging and in the store.
class Empty : public Mounted
{
protected:
	void written_by(const std::string &file, int where, int flags)
	{
		File r, late, w;
		ASSERT_NE(k.put(dir, file, ""), 0u);
		if (where > 0)
			drain();
		if (where > 1)
			shim_evict(t->fs);
		ASSERT_EQ(k.open_name(dir, file, O_RDONLY, &r), 0);
		EXPECT_EQ(k.read_all(r), "");
		ASSERT_EQ(k.open(r.id, flags, &w), 0);
		EXPECT_EQ(w.id, r.id);
		ASSERT_EQ(k.open(r.id, O_RDONLY, &late), 0);
		ASSERT_EQ(k.write(w, "written"), 0);
		EXPECT_EQ(k.read_all(r), "written");
		EXPECT_EQ(k.read_all(late), "written");
		EXPECT_EQ(k.lseek(r, 0, SEEK_HOLE), 7);
		ASSERT_EQ(k.close(w), 0);
		drain();
		shim_evict(t->fs);
		EXPECT_EQ(k.read_all(r), "written");
		EXPECT_EQ(read_file(stored(file)), "written");

		// it is not empty any more: readers keep it
		EXPECT_EQ(k.open(r.id, O_WRONLY | O_TRUNC, &w), -ESTALE);
		ASSERT_EQ(k.rewrite(dir, file, "newer"), 0);
		EXPECT_EQ(k.read_all(r), "written");
		EXPECT_EQ(k.close(late), 0);
		drain();
		shim_evict(t->fs);
		EXPECT_EQ(k.read_all(r), "written");
		EXPECT_EQ(k.close(r), 0);
	}
};

TEST_F(Empty, AWriterGetsTheNodeOfItsReaders)
{
	int n = 0;
	for (int where : {0, 1, 2})
		for (int flags : {O_WRONLY | O_TRUNC, O_RDWR, O_RDWR | O_TRUNC, O_WRONLY | O_APPEND}) {
			SCOPED_TRACE(std::to_string(where) + ", flags " + std::to_string(flags));
			written_by("e" + std::to_string(n++), where, flags);
		}
}

// Another program, or another host, removes or replaces it in the store: its reader is at its end still.
TEST_F(Empty, AReaderOfAnEmptyFileThatAnotherTookIsAtItsEnd)
{
	for (bool replaced : {false, true}) {
		SCOPED_TRACE(replaced);
		std::string file = replaced ? "replaced" : "removed";
		File r;
		ASSERT_NE(k.put(dir, file, ""), 0u);
		drain();
		shim_evict(t->fs);
		ASSERT_EQ(k.open_name(dir, file, O_RDONLY, &r), 0);
		if (replaced) {
			write_file(stored("new"), "others");
			ASSERT_EQ(rename(stored("new").c_str(), stored(file).c_str()), 0);
		} else {
			ASSERT_EQ(unlink(stored(file).c_str()), 0);
		}
		testing::internal::CaptureStderr();
		EXPECT_EQ(k.read(r, 0, 10), 0);
		EXPECT_EQ(k.bytes, "");
		EXPECT_EQ(k.lseek(r, 0, SEEK_HOLE), -ENXIO);
		EXPECT_EQ(k.close(r), 0);
		EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
	}
}

// Of one that is not empty it is an error, and logged once, not for each read.
TEST_F(Empty, AFileThatAnotherTookIsLoggedOnce)
{
	uint64_t id = k.put(dir, "taken", "bytes");
	ASSERT_NE(id, 0u);
	drain();
	shim_evict(t->fs);
	ASSERT_EQ(unlink(stored("taken").c_str()), 0);
	testing::internal::CaptureStderr();
	for (int i = 0; i < 3; i++) {
		File r;
		EXPECT_EQ(k.open(id, O_RDONLY, &r), -ENOENT);
	}
	std::string said = testing::internal::GetCapturedStderr(), what = "is not in the store where";
	size_t first = said.find(what);
	EXPECT_NE(first, std::string::npos) << said;
	EXPECT_EQ(said.find(what, first + 1), std::string::npos) << said;
}

TEST_F(Empty, AReaderOfAnEmptyFileReadsWhatTruncateAdds)
{
	File r;
	ASSERT_NE(k.put(dir, "e", ""), 0u);
	drain();
	shim_evict(t->fs);
	ASSERT_EQ(k.open_name(dir, "e", O_RDONLY, &r), 0);
	EXPECT_EQ(k.truncate(r.id, 3), 0);
	EXPECT_EQ(k.read_all(r), std::string(3, 0));
	EXPECT_EQ(k.close(r), 0);
}

// ---- writers that can only append ----

// Staging's threads are not started before the test says so: nothing is persisted.
class Appenders : public ::testing::Test
{
protected:
	Appenders() : t(ground, false, true), k(t, 0) {}
	void SetUp() override
	{
		ASSERT_EQ(t.err, 0);
		ASSERT_NE(k.put(root, "f", "sealed"), 0u);
		id = k.id;
	}
	void TearDown() override
	{
		if (starter.joinable())
			starter.join();
	}
	void start() { ASSERT_EQ(staging_start(t.s()), 0); }
	// What is asked meanwhile waits for it.
	void start_soon()
	{
		starter = std::thread([this] {
			poll(nullptr, 0, 50);
			may = true;
			staging_start(t.s());
		});
	}
	std::string stored()
	{
		EXPECT_EQ(staging_drain(t.s(), 60000), 0);
		return read_file(ground.store() + "/f");
	}
	Ground ground;
	LiveTree t;
	Client k;
	uint64_t id = 0;
	std::atomic<bool> may = false;
	std::thread starter;
};

TEST_F(Appenders, DoNotWaitForTheVersionBefore)
{
	for (int i = 0; i < 5; i++) {
		File f;
		ASSERT_EQ(k.open(id, O_WRONLY | O_APPEND, &f), 0);
		ASSERT_EQ(k.write(f, "+", 6 + (uint64_t)i), 0);
		ASSERT_EQ(k.close(f), 0);
	}
	EXPECT_EQ(k.get(root, "f"), "sealed+++++");
	start();
	EXPECT_EQ(stored(), "sealed+++++");
}

// What waits is answered when staging's threads have persisted the version.
TEST_F(Appenders, OtherWritersAndChangesOfSealedBytesWait)
{
	File f, other;
	ASSERT_EQ(k.open(id, O_WRONLY | O_APPEND, &f), 0);
	ASSERT_EQ(k.write(f, "+", 6), 0);
	ASSERT_EQ(k.open(id, O_RDONLY, &other), 0);	// a reader need not
	EXPECT_EQ(k.read_all(other), "sealed+");
	ASSERT_EQ(k.close(other), 0);
	start_soon();
	EXPECT_EQ(k.write(f, "S", 0), 0);	// O_APPEND was cleared
	EXPECT_TRUE(may) << "it did not wait";
	ASSERT_EQ(k.open(id, O_RDWR, &other), 0);
	ASSERT_EQ(k.write(other, "D", 5), 0);
	ASSERT_EQ(k.close(other), 0);
	ASSERT_EQ(k.close(f), 0);
	EXPECT_EQ(stored(), "SealeD+");
}

TEST_F(Appenders, ACutWaits)
{
	File f;
	ASSERT_EQ(k.open(id, O_WRONLY | O_APPEND, &f), 0);
	start_soon();
	EXPECT_EQ(k.truncate(id, 3, &f), 0);
	EXPECT_TRUE(may) << "it did not wait";
	ASSERT_EQ(k.close(f), 0);
	EXPECT_EQ(stored(), "sea");
}

TEST_F(Appenders, AnotherOpenForWritingWaits)
{
	File f, other;
	ASSERT_EQ(k.open(id, O_WRONLY | O_APPEND, &f), 0);
	ASSERT_EQ(k.write(f, "+", 6), 0);
	start_soon();
	ASSERT_EQ(k.open(id, O_RDWR, &other), 0);	// it could map the file
	EXPECT_TRUE(may) << "it did not wait";
	ASSERT_EQ(k.close(other), 0);
	ASSERT_EQ(k.close(f), 0);
	EXPECT_EQ(stored(), "sealed+");
}

} // namespace
