// SPDX-License-Identifier: Apache-2.0
// Profiles on disk: whole files read, whole files replaced.
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "experts/profile.h"

#if defined(_WIN32)
#include <io.h>
#else
#include <unistd.h>
#endif

namespace hotset::experts {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kMostBytes = uintmax_t{256} << 20;  // 60 million experts

fs::path path_of(const std::string& utf8) { return fs::path(std::u8string(utf8.begin(), utf8.end())); }

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

File open(const fs::path& path, bool write) {
#if defined(_WIN32)
  return File(_wfopen(path.c_str(), write ? L"wbx" : L"rb"));
#else
  return File(std::fopen(path.c_str(), write ? "wbxe" : "rbe"));
#endif
}

bool flush(std::FILE* file) {
#if defined(_WIN32)
  return std::fflush(file) == 0 && _commit(_fileno(file)) == 0;
#else
  return std::fflush(file) == 0 && ::fsync(::fileno(file)) == 0;
#endif
}

Status failed(const char* doing, const std::error_code& error) { return Status(Code::not_found, doing + (": " + error.message())); }
Status failed(const char* doing) { return failed(doing, std::error_code(errno, std::generic_category())); }

Result<std::string> read_file(const std::string& utf8_path) {
  const fs::path path = path_of(utf8_path);
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error || !fs::exists(status))
    return failed("cannot be read", error ? error : std::make_error_code(std::errc::no_such_file_or_directory));
  HOTSET_FAIL_IF(!fs::is_regular_file(status), not_found, "is not a file");
  const uintmax_t size = fs::file_size(path, error);
  if (error) return failed("cannot be read", error);
  HOTSET_FAIL_IF(size > kMostBytes, invalid_argument, "%llu bytes are too many for a profile", static_cast<unsigned long long>(size));
  const File file = open(path, false);
  if (!file) return failed("cannot be read");
  std::string bytes(static_cast<size_t>(size), '\0');
  const size_t n = std::fread(bytes.data(), 1, bytes.size(), file.get());
  if (std::ferror(file.get())) return failed("cannot be read");
  bytes.resize(n);
  return bytes;
}

// Creates a file beside `path` that nobody else has.
File open_beside(const fs::path& path, fs::path* beside) {
  constexpr int kAttempts = 100;
  File file;
  for (int i = 0; i < kAttempts && !file; ++i) {
    *beside = path;
    *beside += "." + std::to_string(i) + ".tmp";
    file = open(*beside, true);
    if (!file && errno != EEXIST) break;
  }
  return file;
}

// Writes beside the file and renames. A link is followed; what is no regular file (a device, a pipe) stays what it is.
Status replace_file(const std::string& utf8_path, const std::string& bytes) {
  fs::path path = path_of(utf8_path);
  std::error_code error;
  constexpr int kMostLinks = 40;
  for (int i = 0; i < kMostLinks && fs::is_symlink(fs::symlink_status(path, error)); ++i) {
    const fs::path target = fs::read_symlink(path, error);
    if (error) return failed("cannot be written", error);
    path = path.parent_path() / target;  // an absolute target stands alone
  }
  const fs::file_status status = fs::status(path, error);
  HOTSET_FAIL_IF(fs::exists(status) && !fs::is_regular_file(status), invalid_argument, "cannot be written: it is not a regular file");
  fs::path beside;
  File file = open_beside(path, &beside);
  if (!file) return failed("cannot be written");
  struct Remove {
    const fs::path& path;
    ~Remove() {
      std::error_code ignored;
      fs::remove(path, ignored);  // after the rename there is nothing to remove
    }
  } const remove{beside};
  if (std::fwrite(bytes.data(), 1, bytes.size(), file.get()) != bytes.size() || !flush(file.get())) return failed("cannot be written");
  file.reset();
  fs::rename(beside, path, error);
  return error ? failed("cannot be written", error) : Status();
}

}  // namespace

Result<Profile> read_profile(const std::string& path, std::span<const ProfileNode> nodes) {
  HOTSET_ASSIGN(const std::string bytes, read_file(path));
  return parse_profile(bytes, nodes);
}

Status write_profile(const std::string& path, const Profile& profile, std::span<const ProfileNode> nodes) {
  return replace_file(path, format_profile(profile, nodes));
}

}  // namespace hotset::experts
