// SPDX-License-Identifier: MIT
//
// The same of listings, and of what stands in .cairn.
#include <dirent.h>

#include "tests/unit/fs_mounted.hh"

namespace
{

// ---- listings ----

class Listings : public Mounted
{
};

TEST_F(Listings, HaveOursAndTheStoresNames)
{
	drain();
	write_file(stored("theirs"), "");
	std::filesystem::create_directory(stored("their-dir"));
	ASSERT_NE(k.put(dir, "ours", ""), 0u);
	ASSERT_EQ(k.mkdir(dir, "our-dir"), 0);
	ASSERT_EQ(k.symlink(dir, "our-link", "ours"), 0);
	EXPECT_EQ(k.list(dir), "our-dir our-link ours their-dir theirs");
	EXPECT_EQ(k.names["our-dir"].type, (unsigned)DT_DIR);
	EXPECT_EQ(k.names["our-link"].type, (unsigned)DT_LNK);
	EXPECT_EQ(k.names["ours"].type, (unsigned)DT_REG);
	EXPECT_EQ(k.names["their-dir"].type, (unsigned)DT_DIR);
	EXPECT_TRUE(k.names.count(".") && k.names.count(".."));
	EXPECT_EQ(k.names["."].ino, attr_of(dir).ino);
	EXPECT_EQ(k.list(dir, true), "our-dir our-link ours their-dir theirs");
}

TEST_F(Listings, DoNotHaveWhatWasRemovedOrRenamedHere)
{
	ASSERT_NE(k.put(dir, "a", ""), 0u);
	ASSERT_NE(k.put(dir, "b", ""), 0u);
	ASSERT_NE(k.put(dir, "c", ""), 0u);
	drain();
	ASSERT_EQ(k.unlink(dir, "a"), 0);
	ASSERT_EQ(k.rename(dir, "b", dir, "d"), 0);
	EXPECT_EQ(k.list(dir), "c d");
	drain();
	EXPECT_EQ(k.list(dir, true), "c d");
}

TEST_F(Listings, DoNotHaveWhatOthersRemovedFromTheStore)
{
	ASSERT_NE(k.put(dir, "a", ""), 0u);
	ASSERT_NE(k.put(dir, "b", ""), 0u);
	drain();
	std::filesystem::remove(stored("a"));
	EXPECT_EQ(k.list(dir), "b");
}

TEST_F(Listings, ShowTheNumbersThatStatShows)
{
	ASSERT_NE(k.put(dir, "ours", ""), 0u);
	drain();
	write_file(stored("theirs"), "");
	k.list(dir);
	auto plain = k.names;
	k.list(dir, true);
	for (const char *n : {"ours", "theirs"}) {
		EXPECT_EQ(plain[n].ino, k.names[n].ino) << n;
		ASSERT_EQ(k.lookup(dir, n), 0);
		EXPECT_EQ(plain[n].ino, k.ino) << n;
	}
}

TEST_F(Listings, PlusAreLookups)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	uint64_t id = k.id;
	k.list(dir, true);
	EXPECT_EQ(k.names["f"].id, id);
	EXPECT_EQ(k.names["."].id, 0u);
	drain();
	shim_evict(t->fs);
	k.forget(id);		// create's
	EXPECT_EQ(k.getattr(id), 0);
	k.forget(id);		// the listing's
	EXPECT_EQ(k.get(dir, "f"), "bytes");
}

TEST_F(Listings, InSmallPiecesAreWhole)
{
	std::string all;
	for (int i = 100; i < 200; i++) {
		ASSERT_EQ(k.mknod(dir, "n" + std::to_string(i), S_IFREG | 0600), 0);
		all += (all.empty() ? "n" : " n") + std::to_string(i);
	}
	EXPECT_EQ(k.list(dir, false, 200), all);
	EXPECT_EQ(k.list(dir, true, 600), all);
	drain();
	EXPECT_EQ(k.list(dir, false, 200), all);
}

TEST_F(Listings, GoOnWhereTheyWereThoughNamesComeAndGo)
{
	for (int i = 100; i < 140; i++)
		ASSERT_EQ(k.mknod(dir, "n" + std::to_string(i), S_IFREG | 0600), 0);
	File d;
	uint64_t off = 0;
	k.names.clear();
	ASSERT_EQ(k.open_dir(dir, &d), 0);
	ASSERT_EQ(k.read_some(d, &off, 200, false), 0);
	auto first = k.names;
	for (int i = 100; i < 140; i += 2)
		ASSERT_EQ(k.unlink(dir, "n" + std::to_string(i)), 0);
	ASSERT_EQ(k.mknod(dir, "new", S_IFREG | 0600), 0);
	while (!k.read_some(d, &off, 200, false) && !k.bytes.empty())
		;
	for (int i = 101; i < 140; i += 2)
		EXPECT_TRUE(k.names.count("n" + std::to_string(i))) << i;
	EXPECT_EQ(k.release_dir(d), 0);
}

TEST_F(Listings, OfAnotherWorkerGoOnFromTheOffset)
{
	for (int i = 100; i < 140; i++)
		ASSERT_EQ(k.mknod(dir, "n" + std::to_string(i), S_IFREG | 0600), 0);
	File d;
	uint64_t off = 0;
	k.names.clear();
	ASSERT_EQ(k.open_dir(dir, &d), 0);
	ASSERT_EQ(k.read_some(d, &off, 200, false), 0);
	ASSERT_EQ(k.release_dir(d), 0);	// as if nobody had this handle
	while (!k.read_some(d, &off, 200, false) && !k.bytes.empty())
		;
	EXPECT_EQ(k.names.size(), 42u);
	EXPECT_EQ(k.release_dir(d), 0);
}

TEST_F(Listings, OfWhatNobodyKnows)
{
	EXPECT_EQ(k.read_dir(unknown), -ESTALE);
	EXPECT_EQ(k.read_dir(unknown, true), -ESTALE);
}

TEST_F(Listings, OfTheRootDoNotShowTheControlDirectory)
{
	std::string all = " " + k.list(root) + " ";
	EXPECT_EQ(all.find(" .cairn "), std::string::npos);
	EXPECT_NE(all.find(" " + name + " "), std::string::npos);
}

// ---- .cairn ----

class Control : public Mounted
{
protected:
	uint64_t file(const std::string &n)
	{
		EXPECT_EQ(k.lookup(control_dir, n), 0) << n;
		return k.id;
	}
};

TEST_F(Control, IsFoundAndReadOnly)
{
	ASSERT_EQ(k.lookup(root, ".cairn"), 0);
	EXPECT_EQ(k.id, control_dir);
	EXPECT_EQ(k.attr.mode, (uint32_t)S_IFDIR | 0555);
	EXPECT_EQ(k.lookup(control_dir, "none"), -ENOENT);
	EXPECT_EQ(k.getattr(control_dir), 0);
}

TEST_F(Control, ListsWhatItHas)
{
	std::string all = k.list(control_dir);
	for (const char *n : {"status", "status.json", "metrics", "control", "views", "latest", "buffers"})
		EXPECT_TRUE(k.names.count(n)) << n << " in " << all;
	EXPECT_EQ(k.list(control_dir, true), all);
}

TEST_F(Control, TextsAreRead)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	for (const char *n : {"status", "status.json", "metrics"}) {
		File f;
		ASSERT_EQ(k.open(file(n), O_RDONLY, &f), 0) << n;
		std::string all = k.read_all(f);
		EXPECT_GT(all.size(), 100u) << n;
		ASSERT_EQ(k.read(f, 10, 20), 0);
		EXPECT_EQ(k.bytes, all.substr(10, 20)) << n;
		EXPECT_EQ(k.flush(f), 0);
		EXPECT_EQ(k.release(f), 0);
	}
}

TEST_F(Control, TextsAreNotWritten)
{
	File f;
	uint64_t status = file("status");
	EXPECT_EQ(k.open(status, O_WRONLY, &f), -EACCES);
	EXPECT_EQ(k.open(status, O_RDWR, &f), -EACCES);
	EXPECT_EQ(k.write({status, 1}, "text"), -EINVAL);
	EXPECT_EQ(k.open(control_dir, O_RDONLY, &f), -EISDIR);
}

TEST_F(Control, CommandsAreCarriedOut)
{
	File f;
	ASSERT_EQ(k.open(file("control"), O_WRONLY, &f), 0);
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	EXPECT_EQ(k.write(f, "drain\n"), 0);
	EXPECT_EQ(read_file(stored("f")), "bytes");
	EXPECT_EQ(k.write(f, "retry"), 0);
	EXPECT_EQ(k.write(f, "what"), -EINVAL);
	EXPECT_EQ(k.write(f, "draining"), -EINVAL);
	EXPECT_EQ(k.write(f, "discard 12345"), -EINVAL);
	EXPECT_EQ(k.release(f), 0);
}

TEST_F(Control, FilesHaveNoBytesThatCouldBeAllocatedOrSought)
{
	File f = {file("status"), 1};
	EXPECT_EQ(k.fallocate(f, 0, 0, 10), -EBADF);
	EXPECT_EQ(k.lseek(f, 0, SEEK_DATA), -EBADF);
	EXPECT_EQ(k.truncate(f.id, 0), 0);	// `echo drain > control` does
}

} // namespace
