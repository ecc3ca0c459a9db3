//! Reads the call edges of a callgrind profile: caller, callee, number of calls and their cost.
//!
//! The format is <https://valgrind.org/docs/manual/cl-format.html>, without compression of names and positions.

use std::error::Error;

/// The calls of one function by another.
#[derive(Debug, PartialEq, Eq)]
pub struct Edge<'f> {
    pub caller: &'f str,
    pub callee: &'f str,
    pub calls: i64,
    /// The instructions of these calls, including all that the callee calls.
    pub cost: i64,
}

/// Returns the call edges of a profile that counts only instructions.
pub fn edges(profile: &str) -> Result<Vec<Edge<'_>>, Box<dyn Error>> {
    if !profile.lines().any(|line| line.trim_end() == "events: Ir") {
        return Err("callgrind counted something else than instructions".into());
    }
    let (mut caller, mut callee, mut edges) = ("", "", Vec::new());
    let mut lines = profile.lines();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("fn=") {
            caller = name;
        } else if let Some(name) = line.strip_prefix("cfn=") {
            callee = name;
        } else if let Some(count) = line.strip_prefix("calls=") {
            let calls = count.split(' ').next().unwrap_or_default().parse()?;
            // The next line has the position of the call and its cost.
            let cost = lines.next().and_then(|line| line.split(' ').next_back()).ok_or("a profile that is cut off")?;
            edges.push(Edge { caller, callee, calls, cost: cost.parse()? });
        }
    }
    Ok(edges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_their_costs_are_read() {
        let profile = "events: Ir\n\nfn=main\n10 3\ncfn=loop\ncalls=1 0\n11 400\n12 1\n\nfn=loop\n20 5\ncfn=post\ncalls=7 0\n21 90\n";
        let calls = |caller, callee, calls, cost| Edge { caller, callee, calls, cost };
        assert_eq!(edges(profile).unwrap(), [calls("main", "loop", 1, 400), calls("loop", "post", 7, 90)]);
    }
}
