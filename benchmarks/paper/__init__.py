"""The paper's evaluation, figure by figure: each module is a command that simulates it and draws ours over theirs."""
