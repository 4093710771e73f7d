//! Finds profiles: by path, in folders, and inside the executable.

use std::path::{Path, PathBuf};

use super::tree::{Tree, Value};
use super::{check_name, is_path, nearest};
use crate::error::{Error, Result};

/// Environment variable with more profile folders, separated by colons.
pub const PATH_VARIABLE: &str = "CORESIFT_PROFILE_PATH";
/// Where a site keeps its profiles.
const SITE_DIR: &str = "/etc/coresift/profiles";
/// Longest chain of `extends`: more is a circle.
const DEPTH_MAX: usize = 16;

/// The shipped profiles, so that the executable works alone.
const SHIPPED: [(&str, &str); 5] = [
    ("kdump", include_str!("../../../../profiles/kdump.toml")),
    ("fast", include_str!("../../../../profiles/fast.toml")),
    ("small", include_str!("../../../../profiles/small.toml")),
    ("plain", include_str!("../../../../profiles/plain.toml")),
    ("xen", include_str!("../../../../profiles/xen.toml")),
];

/// A profile's text and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// name, or the path it was asked for by
    pub name: String,
    /// its file; `None` for a shipped one inside the executable
    pub path: Option<PathBuf>,
    /// the TOML text
    pub text: String,
}

fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        std::env::var_os(PATH_VARIABLE).iter().flat_map(std::env::split_paths).filter(|p| p.is_absolute()).collect();
    folders.push(SITE_DIR.into());
    let exe = std::env::current_exe().ok();
    folders.extend(exe.as_deref().and_then(Path::parent).and_then(Path::parent).map(|p| p.join("share/coresift/profiles")));
    folders
}

impl Found {
    /// Finds a profile by name or path.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn by_name(name: &str) -> Result<Self> {
        Self::behind(name, None)
    }

    /// Finds a profile, but only behind the place where `found` was: what a site's `kdump` that extends `kdump` means.
    fn behind(name: &str, found: Option<&Path>) -> Result<Self> {
        if is_path(name) {
            return Self::read(name, Path::new(name));
        }
        check_name("profile", name)?;
        let mut files = folders().into_iter().map(|f| f.join(format!("{name}.toml"))).filter(|p| p.exists());
        if let Some(found) = found {
            files.by_ref().find(|p| p == found);
        }
        let file = files.next();
        if let Some(path) = file {
            return Self::read(name, &path);
        }
        if let Some((_, text)) = SHIPPED.iter().find(|(n, _)| *n == name) {
            return Ok(Self { name: name.to_owned(), path: None, text: (*text).to_owned() });
        }
        let known = list();
        let names: Vec<_> = known.iter().map(|f| f.name.as_str()).collect();
        let hint = match nearest(name, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("profiles here: {}; a file is given with a `/` in its path", names.join(", ")),
        };
        Err(Error::usage(format!("profile `{name}` not found")).hint(hint))
    }

    fn read(name: &str, path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| Error { exit: crate::Exit::Usage, ..Error::io("cannot read the profile", path, &e) })?;
        Ok(Self { name: name.to_owned(), path: Some(path.to_owned()), text })
    }

    /// The comment lines at its top: for whom, what it costs, what it leaves out.
    pub fn comment(&self) -> Vec<&str> {
        self.text.lines().map_while(|l| l.strip_prefix('#')).map(str::trim).collect()
    }

    fn place(&self) -> PathBuf {
        self.path.clone().unwrap_or_else(|| PathBuf::from(format!("{}.toml (built in)", self.name)))
    }
}

/// All profiles that can be named, shipped ones last where not overridden.
pub fn list() -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for folder in folders() {
        let mut paths: Vec<_> = std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
        paths.sort();
        for path in paths.into_iter().filter(|p| p.extension().is_some_and(|e| e == "toml")) {
            let Some(name) = path.file_stem().and_then(|s| s.to_str()).filter(|n| found.iter().all(|f| f.name != *n)) else { continue };
            found.extend(Found::read(name, &path));
        }
    }
    for (name, text) in SHIPPED {
        if found.iter().all(|f| f.name != name) {
            found.push(Found { name: name.to_owned(), path: None, text: text.to_owned() });
        }
    }
    found
}

/// A profile's tree with those of the profiles it extends underneath.
///
/// # Errors
/// One of them is not found or is no TOML, or they extend each other in a circle.
pub fn load(name: &str) -> Result<Tree> {
    let mut layers = Vec::new();
    let mut next = Some(name.to_owned());
    let mut last: Option<Found> = None;
    while let Some(name) = next {
        if layers.len() == DEPTH_MAX {
            return Err(Error::usage(format!("profile `{name}`: `extends` goes in a circle")).hint("take one `extends` line out"));
        }
        let same = last.filter(|l| l.name == name).and_then(|l| l.path);
        let found = Found::behind(&name, same.as_deref())?;
        let mut tree = Tree::parse(&found.place(), &found.text)?;
        next = match tree.0.remove("extends") {
            None => None,
            Some(node) => match node.value {
                // A path is seen from the profile that names it.
                Value::Text(base) if is_path(&base) => {
                    let folder = found.path.as_deref().and_then(Path::parent).unwrap_or(Path::new("."));
                    Some(folder.join(base).display().to_string())
                }
                Value::Text(base) => Some(base),
                other => {
                    let message = format!("{}: `extends` is {}, not a profile's name", node.origin, other.kind());
                    return Err(Error::usage(message).hint("for example extends = \"kdump\""));
                }
            },
        };
        if !layers.is_empty() {
            // A description is of its own profile.
            tree.0.remove("description");
        }
        layers.push(tree);
        last = Some(found);
    }
    let mut tree = Tree::default();
    layers.into_iter().rev().for_each(|layer| tree.overlay(layer));
    Ok(tree)
}
