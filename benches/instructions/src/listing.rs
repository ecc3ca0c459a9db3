//! The machine code of a program, as objdump prints it.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

/// An instruction.
#[derive(Debug)]
pub struct Instruction {
    /// Mnemonic and operands.
    pub text: String,
    pub flow: Flow,
}

/// Where control goes after an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// To the next instruction.
    On,
    /// To this address or to the next instruction.
    Branch(u64),
    Jump(u64),
    /// To an address in a register.
    JumpAnywhere,
    /// To this address, and later back.
    Call(u64),
    /// To the address in this slot, and later back.
    CallSlot(u64),
    JumpSlot(u64),
    /// To an address in a register or other memory, and later back.
    CallAnywhere,
    /// Nowhere: the function ends here.
    End,
}

/// A function: its instructions by address.
#[derive(Debug)]
pub struct Function {
    pub name: String,
    pub code: BTreeMap<u64, Instruction>,
}

pub struct Listing {
    /// The functions by address.
    pub functions: BTreeMap<u64, Function>,
    /// The slots that the loader fills, each with a symbol or with the address of a function of the program.
    pub slots: BTreeMap<u64, Slot>,
    /// The read-only data, which contains the jump tables.
    constants: Vec<(Range<u64>, Vec<u8>)>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Slot {
    Symbol(String),
    Address(u64),
}

impl Listing {
    pub fn of(program: &Path) -> Result<Self, Box<dyn Error>> {
        let run = |arguments: &[&str]| -> Result<String, Box<dyn Error>> {
            let output = Command::new("objdump").args(arguments).arg(program).output()?;
            if !output.status.success() {
                return Err(format!("objdump: {}", String::from_utf8_lossy(&output.stderr)).into());
            }
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let image = std::fs::read(program)?;
        Ok(Self {
            functions: functions(&run(&["-d", "-C", "--no-show-raw-insn", "-w"])?),
            slots: slots(&run(&["-R", "-C", "-w"])?),
            constants: constants(&run(&["-h", "-w"])?, &image),
        })
    }

    /// Returns the function that contains this address.
    pub fn function_at(&self, address: u64) -> Option<(u64, &Function)> {
        let (start, function) = self.functions.range(..=address).next_back()?;
        function.code.contains_key(&address).then_some((*start, function))
    }

    /// Returns the instructions that control can reach from the start of a function. No jump leads to the other
    /// instructions: they run only while a panic unwinds.
    pub fn passes(&self, start: u64, function: &Function, ends: impl Fn(Flow) -> bool) -> BTreeSet<u64> {
        let (mut seen, mut to_see) = (BTreeSet::new(), vec![start]);
        to_see.extend(self.jump_targets(function));
        while let Some(address) = to_see.pop() {
            let Some(instruction) = function.code.get(&address) else { continue };
            if !seen.insert(address) {
                continue;
            }
            let flow = instruction.flow;
            if let Flow::Branch(to) | Flow::Jump(to) = flow {
                to_see.push(to);
            }
            let stays = matches!(flow, Flow::Jump(_) | Flow::JumpAnywhere | Flow::JumpSlot(_) | Flow::End);
            if !stays && !ends(flow) {
                to_see.extend(function.code.range(address + 1..).next().map(|next| *next.0));
            }
        }
        seen
    }

    /// Returns the targets of the jump tables of a function.
    ///
    /// The entries of a table are 32-bit distances from the address of the table. The length of a table is unknown, so
    /// this reads on while the data looks like an entry. That may give too many targets but never too few.
    pub fn jump_targets(&self, function: &Function) -> Vec<u64> {
        let mut targets = Vec::new();
        if !function.code.values().any(|instruction| instruction.flow == Flow::JumpAnywhere) {
            return targets;
        }
        for table in function.code.values().filter_map(|instruction| comment_address(&instruction.text, "lea")) {
            for entry in 0.. {
                let Some(distance) = self.constant(table + 4 * entry) else { break };
                let target = table.wrapping_add_signed(i64::from(distance));
                if !function.code.contains_key(&target) {
                    break;
                }
                targets.push(target);
            }
        }
        targets
    }

    fn constant(&self, address: u64) -> Option<i32> {
        let (range, bytes) = self.constants.iter().find(|(range, _)| range.contains(&address))?;
        let at = usize::try_from(address - range.start).ok()?;
        Some(i32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
    }
}

/// Returns the address in the comment that objdump prints after an operand relative to the program counter.
fn comment_address(text: &str, mnemonic: &str) -> Option<u64> {
    let (instruction, comment) = text.split_once('#')?;
    instruction.starts_with(mnemonic).then(|| hex(comment.split_whitespace().next()?))?
}

fn hex(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits, 16).ok()
}

fn functions(listing: &str) -> BTreeMap<u64, Function> {
    let mut functions = BTreeMap::new();
    let mut current: Option<(u64, Function)> = None;
    for line in listing.lines() {
        // "0000000000001230 <name>:"
        if let Some((address, name)) = line.strip_suffix(">:").and_then(|line| line.split_once(" <"))
            && let Some(address) = hex(address)
        {
            functions.extend(current.replace((address, Function { name: name.to_owned(), code: BTreeMap::new() })));
        // "    1234:\tcall   5670 <name>"
        } else if let Some((address, text)) = line.split_once(":\t")
            && let Some(address) = hex(address.trim())
            && let Some((_, function)) = &mut current
        {
            let text = text.trim().to_owned();
            function.code.insert(address, Instruction { flow: flow(&text), text });
        }
    }
    functions.extend(current);
    functions
}

fn flow(text: &str) -> Flow {
    let mut words = text.split_whitespace().skip_while(|word| matches!(*word, "bnd" | "notrack" | "addr32" | "data16"));
    let (mnemonic, operand) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let slot = operand.ends_with("(%rip)").then(|| comment_address(text, "")).flatten();
    match (mnemonic, hex(operand), slot) {
        ("call", Some(to), _) => Flow::Call(to),
        ("call", _, Some(slot)) => Flow::CallSlot(slot),
        ("call", ..) => Flow::CallAnywhere,
        ("jmp", Some(to), _) => Flow::Jump(to),
        ("jmp", _, Some(slot)) => Flow::JumpSlot(slot),
        ("jmp", ..) => Flow::JumpAnywhere,
        ("ret" | "ud2" | "hlt" | "int3", ..) => Flow::End,
        (branch, Some(to), _) if branch.starts_with('j') => Flow::Branch(to),
        _ => Flow::On,
    }
}

/// "000000000004fe20 R_X86_64_GLOB_DAT  memcpy@GLIBC_2.14", "... R_X86_64_RELATIVE  *ABS*+0x8740"
fn slots(relocations: &str) -> BTreeMap<u64, Slot> {
    let entry = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let (address, kind, value) = (hex(words.next()?)?, words.next()?, words.next()?.trim());
        match kind {
            "R_X86_64_RELATIVE" => Some((address, Slot::Address(hex(value.rsplit_once("0x")?.1)?))),
            "R_X86_64_GLOB_DAT" | "R_X86_64_JUMP_SLOT" => Some((address, Slot::Symbol(value.to_owned()))),
            _ => None,
        }
    };
    relocations.lines().filter_map(entry).collect()
}

/// " 16 .rodata  00004a10  0000000000007000  0000000000007000  00007000  2**4  ..."
fn constants(headers: &str, image: &[u8]) -> Vec<(Range<u64>, Vec<u8>)> {
    let section = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, name, size, address, _, offset, ..] = words[..] else { return None };
        if !name.starts_with(".rodata") {
            return None;
        }
        let (size, address, offset) = (hex(size)?, hex(address)?, hex(offset)?);
        Some((address..address + size, image.get(offset as usize..(offset + size) as usize)?.to_vec()))
    };
    headers.lines().filter_map(section).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "
0000000000001000 <a::b>:
    1000:\tpush   %rbx
    1001:\tje     1009 <a::b+0x9>
    1003:\tcall   *0x2f3a(%rip)        # 3ffc0 <_DYNAMIC+0x1f8>
    1009:\tcall   2000 <<x as y>::z>
    100e:\tjmp    *%rax
    1010:\tud2

0000000000002000 <<x as y>::z>:
    2000:\tjmp    *%rcx
    2002:\tcall   1000 <a::b>
";

    #[test]
    fn functions_and_their_flow_are_read() {
        let functions = functions(CODE);
        let flows = |at| functions[&at].code.values().map(|instruction| instruction.flow).collect::<Vec<_>>();
        let (first, second) = (flows(0x1000), flows(0x2000));
        let calls = [Flow::CallSlot(0x3_ffc0), Flow::Call(0x2000), Flow::JumpAnywhere, Flow::End];
        assert_eq!((&first[..2], &first[2..]), (&[Flow::On, Flow::Branch(0x1009)][..], &calls[..]));
        assert_eq!(second, [Flow::JumpAnywhere, Flow::Call(0x1000)]);
        assert_eq!(functions[&0x2000].name, "<x as y>::z");
    }

    #[test]
    fn what_is_behind_a_jump_is_not_come_to() {
        let listing = Listing { functions: functions(CODE), slots: BTreeMap::new(), constants: Vec::new() };
        let reached = listing.passes(0x2000, &listing.functions[&0x2000], |_| false);
        assert_eq!(reached.into_iter().collect::<Vec<_>>(), [0x2000]);
    }

    #[test]
    fn slots_are_read() {
        let text =
            "3ff8 R_X86_64_RELATIVE  *ABS*+0x8740\n4000 R_X86_64_GLOB_DAT  memcpy@GLIBC_2.14\n\nOFFSET TYPE VALUE";
        let slots = slots(text);
        assert_eq!(slots[&0x3ff8], Slot::Address(0x8740));
        assert_eq!(slots[&0x4000], Slot::Symbol("memcpy@GLIBC_2.14".to_owned()));
    }
}
