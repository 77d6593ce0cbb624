//! Writes the seeds of every target below a directory, for a fuzzing engine to begin with.

use std::path::Path;
use std::{env, fs};

fn main() -> std::io::Result<()> {
    let directory = env::args().nth(1).unwrap_or_else(|| "corpus".to_owned());
    for target in lockkeeper_fuzz::TARGETS {
        let corpus = Path::new(&directory).join(target.name);
        fs::create_dir_all(&corpus)?;
        for (number, seed) in (target.seeds)().iter().enumerate() {
            fs::write(corpus.join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}
