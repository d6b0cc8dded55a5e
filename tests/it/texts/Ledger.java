package com.example.ledger;

import java.math.BigDecimal;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/** Books entries and answers for balances. Not thread safe. */
public final class Ledger {
    private final Map<String, List<Entry>> entries = new HashMap<>();
    private LocalDate closedUntil = LocalDate.MIN;

    public record Entry(String account, LocalDate day, BigDecimal amount, String text) {
        public Entry {
            Objects.requireNonNull(account);
            Objects.requireNonNull(day);
            Objects.requireNonNull(amount);
            Objects.requireNonNull(text);
            if (amount.signum() == 0) {
                throw new IllegalArgumentException("an entry of nothing");
            }
        }
    }

    public void book(Entry entry) {
        if (!entry.day().isAfter(closedUntil)) {
            throw new IllegalStateException("closed until " + closedUntil);
        }
        entries.computeIfAbsent(entry.account(), ignored -> new ArrayList<>()).add(entry);
    }

    public void transfer(String from, String to, LocalDate day, BigDecimal amount, String text) {
        if (amount.signum() <= 0) {
            throw new IllegalArgumentException("transfer a positive amount");
        }
        book(new Entry(from, day, amount.negate(), text));
        book(new Entry(to, day, amount, text));
    }

    public BigDecimal balance(String account, LocalDate day) {
        BigDecimal sum = BigDecimal.ZERO;
        for (Entry entry : entries.getOrDefault(account, List.of())) {
            if (!entry.day().isAfter(day)) {
                sum = sum.add(entry.amount());
            }
        }
        return sum;
    }

    public List<Entry> statement(String account, LocalDate from, LocalDate to) {
        List<Entry> found = new ArrayList<>();
        for (Entry entry : entries.getOrDefault(account, List.of())) {
            if (!entry.day().isBefore(from) && !entry.day().isAfter(to)) {
                found.add(entry);
            }
        }
        found.sort((a, b) -> a.day().compareTo(b.day()));
        return Collections.unmodifiableList(found);
    }

    public void close(LocalDate until) {
        if (until.isBefore(closedUntil)) {
            throw new IllegalArgumentException("already closed until " + closedUntil);
        }
        closedUntil = until;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Ledger ledger
                && entries.equals(ledger.entries)
                && closedUntil.equals(ledger.closedUntil);
    }

    @Override
    public int hashCode() {
        return Objects.hash(entries, closedUntil);
    }
}
