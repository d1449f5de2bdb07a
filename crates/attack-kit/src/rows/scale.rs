//! How large attacks are.

/// How large the server's limits are, and how many clients attack.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Its `--max-request-size`.
    pub request: usize,
    /// Its `--memory-budget`.
    pub budget: usize,
    /// Clients that read slowly, or not at all.
    pub readers: usize,
    /// Clients that send compressed bodies.
    pub crowd: usize,
}

impl Scale {
    /// The server's default options.
    pub const FULL: Self = Self {
        request: 64 << 20,
        budget: 512 << 20,
        readers: 60,
        crowd: 300,
    };

    /// An eighth of that, for tests.
    pub const SMALL: Self = Self {
        request: 8 << 20,
        budget: 64 << 20,
        readers: 60,
        crowd: 100,
    };

    /// The options that give a server these limits.
    #[must_use]
    pub fn options(&self) -> [String; 6] {
        [
            "--max-request-size".to_owned(),
            self.request.to_string(),
            "--max-answer-size".to_owned(),
            self.request.to_string(),
            "--memory-budget".to_owned(),
            self.budget.to_string(),
        ]
    }

    /// The most memory that the server may take, above what it has when nothing is to do.
    #[must_use]
    pub fn bound(&self) -> usize {
        self.budget + self.budget / 4 + (64 << 20)
    }
}
