//! Runs the engine inside the test: thousands of small runs, of which only the set of pages kept is looked at.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use coresift_engine::dump::{Job, run_to};
use coresift_engine::profile::{self, Profile, Setting};
use coresift_engine::progress::{Hidden, Progress};
use coresift_engine::registry::Registry;
use coresift_engine::report::Report;
use coresift_engine::sink::Output;
use coresift_sdk::{Result as PluginResult, Sink};

use crate::built;
use crate::kdump::Kdump;

/// A profile at work.
pub struct Inside {
    registry: Registry,
    profile: Profile,
    front: PathBuf,
}

/// The page filter at a dump level, without compression: if the level has no zero pages in it, pages need not be read.
pub fn page_filter(folder: &Path, level: u32) -> Inside {
    let path = folder.join("inside.toml");
    let text = format!("extends = \"plain\"\n[[filter]]\nplugin = \"linux\"\nlevel = {level}\n");
    std::fs::write(&path, text).expect("a file");
    let settings: Vec<_> = ["compress.plugin=none", "compress.fallback=[]"].map(|s| Setting::parse(s).expect("a setting")).into();
    let profile = profile::open(path.to_str().expect("a path"), &settings).expect("a profile");
    Inside { registry: Registry::new(&[built()]), profile, front: folder.join("front") }
}

impl Inside {
    /// Filters a vmcore; the report and the PFNs kept. `vmcoreinfo` is a file with VMCOREINFO lines.
    ///
    /// # Errors
    /// There is no dump.
    pub fn run(&self, vmcore: &Path, vmcoreinfo: Option<&Path>) -> coresift_engine::Result<(Report, Vec<u64>)> {
        let progress: Arc<dyn Progress> = Arc::new(Hidden);
        let profile = Profile { vmcoreinfo: vmcoreinfo.map(Path::to_owned), ..self.profile.clone() };
        let job = Job { inputs: vec![vmcore.to_owned()], output: None, more_outputs: Vec::new(), force: false, profile };
        let front = Arc::new(Mutex::new(vec![0u8; FRONT]));
        let report = run_to(&job, &self.registry, &progress, &|_| Ok(Box::new(Front(front.clone()))))?;
        std::fs::write(&self.front, &*front.lock().expect("no panic")).expect("a file");
        Ok((report, Kdump::open(&self.front).expect("a kdump file").dumped()))
    }
}

/// Keeps the front of a dump: headers and bitmaps.
struct Front(Arc<Mutex<Vec<u8>>>);

/// Enough for the bitmaps of 16 GiB.
const FRONT: usize = 2 << 20;

impl Sink for Front {
    fn write_at(&mut self, offset: u64, pieces: &[&[u8]]) -> PluginResult<()> {
        let mut front = self.0.lock().expect("no panic");
        let mut at = offset as usize;
        for piece in pieces {
            if at + piece.len() <= FRONT {
                front[at..at + piece.len()].copy_from_slice(piece);
            }
            at += piece.len();
        }
        Ok(())
    }
    fn reserve(&mut self, _: u64) -> PluginResult<()> {
        Ok(())
    }
    fn positioned(&self) -> bool {
        true
    }
}

impl Output for Front {
    fn written(&self) -> u64 {
        0
    }
    fn finish(&mut self) -> coresift_engine::Result<()> {
        Ok(())
    }
    fn place(&self) -> Option<&Path> {
        None
    }
}
