//! Profiles: found, extended, overridden, and checked with file, line and column before any input is opened.

use std::path::PathBuf;

use coresift_tests::{coresift, scratch};

fn check(text: &str) -> (PathBuf, coresift_tests::Run, tempfile::TempDir) {
    let folder = scratch();
    let path = folder.path().join("site.toml");
    std::fs::write(&path, text).unwrap();
    let run = coresift(["profiles".as_ref(), "check".as_ref(), path.as_os_str()]);
    (path, run, folder)
}

/// A bad profile is refused with status 2, at this line and column.
#[track_caller]
fn refused(text: &str, place: &str, texts: &[&str]) {
    let (path, run, _folder) = check(text);
    let run = run.status(2).says(texts);
    assert!(run.stderr.contains(&format!("{}:{place}:", path.display())), "not at {place}: {}", run.stderr);
}

#[test]
fn shipped_profiles_are_good_and_open_with_three_lines_of_comment() {
    let list = coresift(["--json", "profiles", "list"]).status(0).json();
    let profiles = list["profiles"].as_array().unwrap();
    for name in ["kdump", "fast", "small", "plain", "xen"] {
        let profile = profiles.iter().find(|p| p["name"] == name).unwrap();
        assert_eq!(profile["comment"].as_array().unwrap().len(), 3, "{profile}");
        let run = coresift(["profiles", "check", name]).status(0);
        assert!(run.stdout.starts_with(&format!("ok: {name}: reader auto, ")), "{}", run.stdout);
        let text = coresift(["profiles", "show", name]).status(0).stdout;
        let file = coresift_tests::workspace().join(format!("profiles/{name}.toml"));
        assert_eq!(text, std::fs::read_to_string(file).unwrap());
    }
}

#[test]
fn wrong_keys_types_and_values_are_found_with_their_place() {
    refused("[engine]\nthraeds = 2\n", "2:11", &["unknown key `thraeds` in [engine]", "did you mean `threads`?"]);
    refused("[engine]\n\n  threads = \"many\"\n", "3:13", &["`threads` is a text"]);
    refused("[engine]\nmap_size = \"4Moo\"\n", "2:12", &["`map_size`", "moo"]);
    refused("[engine]\nmemory = -1\n", "2:10", &["`memory`", "negative"]);
    refused("[compress]\nplugin = \"zstd\"\nlevel = \"high\"\n", "3:9", &["`level`", "a text"]);
    refused("[compress]\nplugin = \"zstd\"\nlevle = 3\n", "3:9", &["unknown key `levle`", "did you mean `level`?"]);
    refused("[compress]\nplugin = \"zstd\"\nlevel = 99\n", "3:9", &["99 is not within -7 to 22"]);
    refused("[compress]\nplugin = \"../zstd\"\n", "2:10", &["no name of a plugin"]);
    refused("[[filter]]\nplugin = \"zero\"\non_failure = \"ignore\"\n", "3:14", &["on_failure `ignore`", "\"keep\" or \"stop\""]);
    refused("filter = 3\n", "1:10", &["`filter` is a number", "[[filter]]"]);
    refused("[report]\nformat = \"xml\"\n", "2:10", &["report format `xml`"]);
    refused("[outptu]\n", "1:2", &["unknown key `outptu`", "did you mean `output`?"]);
    refused("[engine\n", "1:8", &["TOML"]);
    refused("[engine]\nthreads = 1.5\n", "2:11", &["no fractions"]);
    refused("extends = 3\n", "1:11", &["`extends` is a number"]);
}

#[test]
fn a_filter_without_plugin_is_refused() {
    let (_, run, _folder) = check("[[filter]]\non_failure = \"keep\"\n");
    run.status(2).says(&["[[filter]] without `plugin`"]);
}

#[test]
fn profiles_extend_each_other_and_a_circle_ends() {
    let folder = scratch();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("base.toml", "extends = \"small\"\n[engine]\nthreads = 1\n");
    write("top.toml", "extends = \"./base.toml\"\n[compress]\nlevel = 3\n");
    let run = coresift(["profiles".as_ref(), "check".as_ref(), folder.path().join("top.toml").as_os_str()]).status(0);
    assert!(run.stdout.contains("reader auto, filter linux, compressor libdeflate, writer kdump"), "{}", run.stdout);
    write("a.toml", "extends = \"./b.toml\"\n");
    write("b.toml", "extends = \"./a.toml\"\n");
    coresift(["profiles".as_ref(), "check".as_ref(), folder.path().join("a.toml").as_os_str()]).status(2).says(&["circle"]);
}

#[test]
fn another_codec_does_not_inherit_the_settings_of_the_first() {
    for plugin in ["lzo", "zstd"] {
        let (_, run, _folder) = check(&format!("extends = \"small\"\n[compress]\nplugin = \"{plugin}\"\n"));
        assert!(run.status(0).stdout.contains(&format!("compressor {plugin}")));
        let args = ["dump", "--profile", "small", "--set", &format!("compress.plugin={plugin}"), "--dry-run"];
        let input = coresift_tests::vmcores::KDUMP_6_1.path();
        coresift(args.iter().map(AsRef::as_ref).chain([input.as_os_str()])).status(0);
    }
}

#[test]
fn a_check_looks_at_every_fallback() {
    let (_, run, _folder) = check("extends = \"kdump\"\n[compress]\nfallback = [\"lzzo\"]\n");
    run.status(1).says(&["fallback: compressor `lzzo` not found", "did you mean `lzo`?"]);
}

#[test]
fn a_sites_profile_may_extend_the_shipped_one_of_its_name() {
    let folder = scratch();
    std::fs::write(folder.path().join("kdump.toml"), "extends = \"kdump\"\n[engine]\nthreads = 1\n").unwrap();
    let run = coresift_tests::command(["profiles", "check", "kdump"]).env("CORESIFT_PROFILE_PATH", folder.path()).output().unwrap();
    assert!(String::from_utf8_lossy(&run.stdout).contains("ok: kdump: reader auto, filter linux, compressor lzo"));
}

#[test]
fn a_sites_folder_of_profiles_is_searched_before_the_shipped_ones() {
    let folder = scratch();
    std::fs::write(folder.path().join("kdump.toml"), "description = \"ours\"\n").unwrap();
    let run = coresift_tests::command(["profiles", "show", "kdump"]).env("CORESIFT_PROFILE_PATH", folder.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&run.stdout), "description = \"ours\"\n");
}

#[test]
fn a_missing_filter_is_an_error_unless_the_profile_lets_it_go() {
    let (_, run, _folder) = check("extends = \"kdump\"\n[[filter]]\nplugin = \"acme-gpu\"\n");
    run.status(1).says(&["filter `acme-gpu` not found (libfilter_acme_gpu.so)"]);
    let (_, run, _folder) = check("extends = \"kdump\"\n[[filter]]\nplugin = \"acme-gpu\"\non_failure = \"keep\"\n");
    let run = run.status(0);
    assert!(run.stderr.contains("warning: filter acme-gpu is left out"), "{}", run.stderr);
}
