"""Fine-tuning as resumable quanta: sample streams, micro-batches, loss, optimizer, the Trainer."""
