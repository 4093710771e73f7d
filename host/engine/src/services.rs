//! What the host does for plugins: messages, memory of the crashed machine, and its kernel.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use coresift_kernel::Memory;
use coresift_sdk::abi::{HostServices, KernelView, ReadPhysical};
use coresift_sdk::{Host, Mapping};

use crate::image::Image;
use crate::progress::Progress;

/// The services of the host for one plugin.
struct Services {
    progress: Arc<dyn Progress>,
    image: Option<Arc<Image>>,
    cancel: Arc<AtomicBool>,
}

/// Makes the host object for a plugin; with an image, the plugin may read the crashed machine's memory.
pub fn services(progress: &Arc<dyn Progress>, image: Option<Arc<Image>>, cancel: &Arc<AtomicBool>) -> Host {
    Host::new(Arc::new(Services { progress: progress.clone(), image, cancel: cancel.clone() }))
}

impl HostServices for Services {
    fn log(&self, level: u32, message: &str) {
        if level <= coresift_sdk::Level::Warning as u32 { self.progress.warn(message) } else { self.progress.note(message) }
    }

    fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    fn physical_memory(&self) -> Option<&dyn ReadPhysical> {
        self.image.as_deref().map(|image| image as &dyn ReadPhysical)
    }

    fn kernel(&self) -> Option<&dyn KernelView> {
        self.image.as_deref().filter(|image| image.kernel.is_ok()).map(|image| image as &dyn KernelView)
    }
}

impl ReadPhysical for Image {
    fn read_physical(&self, paddr: u64, buf: &mut [u8]) -> usize {
        Image::read_physical(self, paddr, buf)
    }
}

impl Memory for Image {
    fn read(&self, paddr: u64, buf: &mut [u8]) -> usize {
        Image::read_physical(self, paddr, buf)
    }
}

impl KernelView for Image {
    fn symbol(&self, name: &str) -> Option<u64> {
        self.kernel.as_ref().ok()?.info().symbol(name)
    }

    fn translate(&self, vaddr: u64) -> Option<Mapping> {
        let found = self.kernel.as_ref().ok()?.space().translate(self, vaddr).ok()?;
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let flags = flag(found.executable, Mapping::EXECUTABLE) | flag(found.writable, Mapping::WRITABLE);
        Some(Mapping { paddr: found.paddr, len: found.len, flags, reserved: 0 })
    }

    fn read(&self, vaddr: u64, buf: &mut [u8]) -> usize {
        self.kernel.as_ref().map_or(0, |kernel| kernel.space().read(self, vaddr, buf))
    }

    fn struct_page(&self, pfn: u64) -> Option<u64> {
        self.kernel.as_ref().ok()?.mem_map().ok()?.struct_page(pfn)
    }

    fn pfn(&self, struct_page: u64) -> Option<u64> {
        self.kernel.as_ref().ok()?.mem_map().ok()?.pfn(struct_page)
    }
}
