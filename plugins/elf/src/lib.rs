//! ELF core files as vmcores: what the readers of them share. No plugin by itself.
//!
//! An ELF core file is a header, a table of program headers, and what the table points to. `PT_NOTE` segments hold notes
//! (CPU registers, the VMCOREINFO text of the kernel), `PT_LOAD` segments hold memory: so many bytes at this physical
//! address stand at that file offset. Format: System V ABI, chapters "Object Files" and "Program Loading"; what Linux
//! makes of it: fs/proc/vmcore.c.
//!
//! The way of an input, one module a step:
//!
//! | module | does |
//! |---|---|
//! | [`header`] | the ELF header: is it a core, which class, byte order and machine, where the table is |
//! | [`segments`] | the table: `PT_LOAD`s checked and clipped, places of the notes |
//! | [`notes`] | the notes: VMCOREINFO, number of CPUs |
//! | [`machine`] | architecture and page size, and all else that goes into [`coresift_sdk::Machine`] |
//! | [`layout`] | from any set of `PT_LOAD`s to ascending, disjoint extents of pages |
//! | [`image`] | the reader itself: joins the above |
//!
//! Nothing in the input is trusted: sizes are bounded before memory is allocated, additions are checked, and what makes
//! no sense becomes a warning as long as anything can be saved.

pub mod header;
pub mod image;
pub mod layout;
pub mod machine;
pub mod notes;
pub mod segments;
