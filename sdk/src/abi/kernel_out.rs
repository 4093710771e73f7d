//! The host's kernel as the function table that plugins call.

use core::ffi::c_void;

use super::AbiInterface;
use super::objects::{HostOut, KernelView};
use super::plugin_side::contain;
use crate::kernel::{KernelTable, Mapping};

static TABLE: KernelTable = KernelTable { translate, read, symbol, struct_page, pfn };

/// What a function returns when there is no such thing (ENXIO of asm-generic/errno-base.h).
const NOTHING: i64 = -6;

/// The interface of a host whose services have a kernel.
pub(super) fn interface(host: &HostOut) -> AbiInterface {
    // SAFETY: the table is the one of this name and version, and is called with this object, which lives in the box that
    // the plugin's host object owns.
    unsafe { AbiInterface::new(&TABLE, std::ptr::from_ref(host).cast()) }
}

/// Asks the kernel behind `object`, without a panic that crosses the border.
///
/// # Safety
/// `object` is what stood beside the table: a `HostOut`, alive as long as the plugin holds its host object.
unsafe fn ask<T>(object: *const c_void, question: impl FnOnce(&dyn KernelView) -> Option<T>) -> Option<T> {
    // SAFETY: the caller's promise.
    let host = unsafe { &*object.cast::<HostOut>() };
    contain(|| host.0.kernel().and_then(question)).unwrap_or_default()
}

/// Leaves an answer where the plugin wants it.
///
/// # Safety
/// `out` is valid for a write.
unsafe fn answer<T>(found: Option<T>, out: *mut T) -> i64 {
    let Some(value) = found else { return NOTHING };
    // SAFETY: the caller's promise.
    unsafe { out.write(value) };
    0
}

unsafe extern "C" fn translate(object: *const c_void, vaddr: u64, out: *mut Mapping) -> i64 {
    // SAFETY: by the contract of `KernelTable`, `object` came with the table and `out` is valid for a write.
    unsafe { answer(ask(object, |k| k.translate(vaddr)), out) }
}

unsafe extern "C" fn read(object: *const c_void, vaddr: u64, buf: *mut u8, len: usize) -> i64 {
    // SAFETY: by the contract of `KernelTable`, `buf` is valid for writes of `len` bytes.
    let buf = unsafe { std::slice::from_raw_parts_mut(buf, len) };
    // SAFETY: by the same contract, `object` came with the table.
    let done = unsafe { ask(object, |k| Some(k.read(vaddr, buf))) };
    done.map_or(NOTHING, |n| i64::try_from(n).unwrap_or(i64::MAX))
}

unsafe extern "C" fn symbol(object: *const c_void, name: *const u8, len: usize, out: *mut u64) -> i64 {
    // SAFETY: by the contract of `KernelTable`, `name` is valid for reads of `len` bytes.
    let name = unsafe { std::slice::from_raw_parts(name, len) };
    let Ok(name) = std::str::from_utf8(name) else { return NOTHING };
    // SAFETY: by the same contract, `object` came with the table and `out` is valid for a write.
    unsafe { answer(ask(object, |k| k.symbol(name)), out) }
}

unsafe extern "C" fn struct_page(object: *const c_void, pfn: u64, out: *mut u64) -> i64 {
    // SAFETY: by the contract of `KernelTable`, `object` came with the table and `out` is valid for a write.
    unsafe { answer(ask(object, |k| k.struct_page(pfn)), out) }
}

unsafe extern "C" fn pfn(object: *const c_void, struct_page: u64, out: *mut u64) -> i64 {
    // SAFETY: by the contract of `KernelTable`, `object` came with the table and `out` is valid for a write.
    unsafe { answer(ask(object, |k| k.pfn(struct_page)), out) }
}
