//! Conversions between the values of the surface and the safe types.

use super::*;
use crate::config::{Config, Key, KeyType, Value};
use crate::error::{Error, ErrorKind};
use crate::machine::{Machine, UtsName};
use crate::manifest::{Kind, Manifest, Stages};

pub(super) fn strings(list: Vec<String>) -> RVec<RString> {
    list.into_iter().map(RString::from).collect()
}

pub(super) fn owned(list: RVec<RString>) -> Vec<String> {
    list.into_iter().map(RString::into_string).collect()
}

impl From<Error> for AbiError {
    fn from(e: Error) -> Self {
        let kind = ErrorKind::ALL.iter().find(|(k, _)| *k == e.kind).map_or(0, |(_, n)| *n);
        Self { kind, errno: e.errno, pfn: e.pfn.into(), offset: e.offset.into(), message: e.message.into(), hint: e.hint.into() }
    }
}

impl From<AbiError> for Error {
    fn from(e: AbiError) -> Self {
        let kind = ErrorKind::ALL.iter().find(|(_, n)| *n == e.kind).map_or(ErrorKind::Other, |(k, _)| *k);
        Self {
            kind,
            errno: e.errno,
            pfn: e.pfn.into_option(),
            offset: e.offset.into_option(),
            message: e.message.into_string(),
            hint: e.hint.into_string(),
        }
    }
}

/// Turns a result of the surface into one of the safe types.
pub(super) fn safe<T>(r: AbiResult<T>) -> crate::error::Result<T> {
    r.into_result().map_err(Error::from)
}

/// Turns a safe result into one of the surface.
pub(super) fn stable<T>(r: crate::error::Result<T>) -> AbiResult<T> {
    r.map_err(AbiError::from).into()
}

/// Bit of [`AbiMachine::flags`] for [`Machine::hypervisor`].
const HYPERVISOR: u32 = 1;

impl From<&Machine> for AbiMachine {
    fn from(m: &Machine) -> Self {
        let UtsName { sysname, nodename, release, version, machine, domainname } = m.utsname.clone();
        Self {
            format: m.format.clone().into(),
            arch: m.arch.clone().into(),
            elf_machine: m.elf_machine.into(),
            word_bits: m.word_bits,
            big_endian: m.big_endian,
            incomplete: m.incomplete,
            page_shift: m.page_shift,
            cpus: m.cpus,
            flags: if m.hypervisor { HYPERVISOR } else { 0 },
            excluded: m.excluded.0,
            crash_time: m.crash_time,
            phys_base: m.phys_base.into(),
            codec: m.codec,
            erased: m.erased.as_slice().into(),
            max_pfn: m.max_pfn,
            utsname: strings(vec![sysname, nodename, release, version, machine, domainname]),
            notes: m.notes.clone().into(),
            vmcoreinfo: m.vmcoreinfo.clone().into(),
            warnings: strings(m.warnings.clone()),
        }
    }
}

impl From<AbiMachine> for Machine {
    fn from(m: AbiMachine) -> Self {
        let mut names = owned(m.utsname).into_iter();
        let mut name = || names.next().unwrap_or_default();
        let utsname = UtsName { sysname: name(), nodename: name(), release: name(), version: name(), machine: name(), domainname: name() };
        Self {
            format: m.format.into_string(),
            arch: m.arch.into_string(),
            elf_machine: u16::try_from(m.elf_machine).unwrap_or(0),
            word_bits: m.word_bits,
            big_endian: m.big_endian,
            page_shift: m.page_shift,
            cpus: m.cpus,
            utsname,
            crash_time: m.crash_time,
            phys_base: m.phys_base.into_option(),
            codec: m.codec,
            erased: m.erased.into_vec(),
            hypervisor: m.flags & HYPERVISOR != 0,
            max_pfn: m.max_pfn,
            excluded: crate::ClassSet(m.excluded),
            incomplete: m.incomplete,
            notes: m.notes.into_vec(),
            vmcoreinfo: m.vmcoreinfo.into_vec(),
            warnings: owned(m.warnings),
        }
    }
}

fn kind_number(kind: KeyType) -> u32 {
    KeyType::ALL.iter().position(|&k| k == kind).map_or(0, |i| i as u32)
}

fn kind_of(number: u32) -> Option<KeyType> {
    KeyType::ALL.get(number as usize).copied()
}

impl From<Value> for AbiValue {
    fn from(v: Value) -> Self {
        let plain = |kind, number| Self { kind: kind_number(kind), number, text: RString::new(), list: RVec::new() };
        match v {
            Value::Bool(b) => plain(KeyType::Bool, b.into()),
            Value::Integer(n) => plain(KeyType::Integer, n),
            Value::Size(n) => plain(KeyType::Size, n.cast_signed()),
            Value::Text(t) => Self { text: t.into(), ..plain(KeyType::Text, 0) },
            Value::List(l) => Self { list: strings(l), ..plain(KeyType::List, 0) },
        }
    }
}

impl AbiValue {
    fn into_value(self) -> crate::error::Result<Value> {
        let unknown = || Error::new(ErrorKind::Config, format!("a configuration value of unknown type {}", self.kind));
        Ok(match kind_of(self.kind).ok_or_else(unknown)? {
            KeyType::Bool => Value::Bool(self.number != 0),
            KeyType::Integer => Value::Integer(self.number),
            KeyType::Size => Value::Size(self.number.cast_unsigned()),
            KeyType::Text => Value::Text(self.text.into_string()),
            KeyType::List => Value::List(owned(self.list)),
        })
    }
}

pub(super) fn settings(config: &Config) -> RVec<AbiSetting> {
    config.iter().map(|(k, v)| AbiSetting { key: k.into(), value: v.clone().into() }).collect()
}

pub(super) fn config(settings: RVec<AbiSetting>) -> crate::error::Result<Config> {
    let pairs = settings.into_iter().map(|s| Ok((s.key.into_string(), s.value.into_value()?)));
    Ok(Config::new(pairs.collect::<crate::error::Result<_>>()?))
}

impl From<Manifest> for AbiManifest {
    fn from(m: Manifest) -> Self {
        let key = |k: Key| AbiKey {
            name: k.name.into(),
            kind: kind_number(k.kind),
            help: k.help.into(),
            default: k.default.map(AbiValue::from).into(),
            min: k.range.0,
            max: k.range.1,
            choices: strings(k.choices),
        };
        Self {
            name: m.name.into(),
            kind: m.kind as u32,
            version: m.version.into(),
            description: m.description.into(),
            formats: strings(m.formats),
            codec: m.codec,
            codecs: m.codecs,
            architectures: strings(m.architectures),
            kernels: m.kernels.into(),
            stages: m.stages.0,
            flags: m.flags,
            classes: strings(m.classes),
            keys: m.keys.into_iter().map(key).collect(),
        }
    }
}

impl AbiManifest {
    pub(super) fn into_manifest(self) -> crate::error::Result<Manifest> {
        let bad = |what: String| Error::new(ErrorKind::Unsupported, what);
        let key = |k: AbiKey| -> crate::error::Result<Key> {
            Ok(Key {
                kind: kind_of(k.kind).ok_or_else(|| bad(format!("key {} has unknown type {}", k.name, k.kind)))?,
                name: k.name.into_string(),
                help: k.help.into_string(),
                default: k.default.into_option().map(AbiValue::into_value).transpose()?,
                range: (k.min, k.max),
                choices: owned(k.choices),
            })
        };
        Ok(Manifest {
            kind: Kind::from_number(self.kind).ok_or_else(|| bad(format!("unknown kind of plugin {}", self.kind)))?,
            name: self.name.into_string(),
            version: self.version.into_string(),
            description: self.description.into_string(),
            formats: owned(self.formats),
            codec: self.codec,
            codecs: self.codecs,
            architectures: owned(self.architectures),
            kernels: self.kernels.into_string(),
            stages: Stages(self.stages),
            flags: self.flags,
            classes: owned(self.classes),
            keys: self.keys.into_iter().map(key).collect::<crate::error::Result<_>>()?,
        })
    }
}

/// Numbers of error kinds, for the test that pins them.
pub fn error_kinds() -> Vec<(ErrorKind, u32)> {
    ErrorKind::ALL.to_vec()
}

/// Numbers of key types, for the test that pins them.
pub fn key_types() -> Vec<(KeyType, u32)> {
    KeyType::ALL.iter().map(|&k| (k, kind_number(k))).collect()
}

/// Numbers of the states of a packed page, for the test that pins them.
pub fn packed_states() -> [u32; 3] {
    let states = [PackedPage::stored(&[], 0), PackedPage::zero(), PackedPage::missing()];
    states.map(|p| p.state)
}
